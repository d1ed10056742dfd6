/*
 * pace.c - see pace.h.
 */
#include "pace.h"

static size_t least(const struct pace *pace)
{
	return pace->limit < PACE_LEAST ? pace->limit : PACE_LEAST;
}

static size_t within(const struct pace *pace, size_t runs)
{
	if (runs < least(pace))
		return least(pace);
	return runs < pace->limit ? runs : pace->limit;
}

void pace_reset(struct pace *pace)
{
	pace->runs = within(pace, pace->limit / 8);
}

void pace_set_limit(struct pace *pace, size_t limit)
{
	pace->limit = limit;
	pace->runs = within(pace, pace->runs);
}

void pace_note(struct pace *pace, size_t runs, int64_t took)
{
	size_t fitting = took > 0 ? (size_t)(PACE_LOOK * (int64_t)runs / took) : SIZE_MAX;

	if (runs < least(pace))
		return; /* too few to tell from */
	if (fitting > 2 * runs)
		fitting = 2 * runs;
	/* a transaction that had no more to do than this says nothing against more */
	if (fitting > pace->runs || took > PACE_LOOK)
		pace->runs = within(pace, fitting);
}
