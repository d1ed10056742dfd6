/*
 * facts.h - reading: one snapshot, one round trip. Never writes.
 */
#ifndef LEASE_FACTS_H
#define LEASE_FACTS_H

#include "pipeline.h"

/* Two statements: is it a writable primary, and does it have the schema that we know? */
struct database_check {
	int step;
};

struct operation database_check_operation(struct database_check *check);

/* Statements of a reading, between BEGIN and COMMIT of a read-only transaction. */
struct reading {
	void (*fill)(const struct reading *reading, struct batch *batch);
	/* `index` counts the reading's own statements */
	int (*take)(struct reading *reading, int index, const PGresult *result,
		    struct lease_error *reterr);
	const char *run_id;
	void *ret;
	int refusal;
};

int run_reading(PGconn *conn, struct reading *reading, struct lease_error *reterr);

/* The run (statement 0) and its attempts (1), into reading->ret, a struct lease_history. */
void fill_history(const struct reading *reading, struct batch *batch);
int take_history(struct reading *reading, int index, const PGresult *result,
		 struct lease_error *reterr);

/* A copy of a text that may be NULL. */
int copy_text(const char *from, char **ret, struct lease_error *reterr);

#endif
