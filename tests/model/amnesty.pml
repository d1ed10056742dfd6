/*
 * amnesty.pml - the heartbeat row, outages of the database, and who may close whose lease.
 *
 * One run, workers, daemons that beat, sweeps, claims that take over, a database that goes away and
 * comes back at any moment, for any time and any number of times: crashed (what was in flight is
 * gone) or frozen (it goes on later, from the snapshot and the readings that it had). A daemon need
 * not beat: one that is stopped on purpose, or cut off, is one that does not.
 *
 * Any statement that is in flight stands between its reading and its write for as long as you like;
 * a close takes its snapshot of the heartbeat row when it starts, and reads the clock and the
 * attempt's row when it writes (PostgreSQL evaluates the guard again on the newest version of the
 * row that it updates, and on that row alone).
 *
 * Times are kept as what is left until then, or as an age, so time has no last moment here. Sizes
 * are set with -D: see run.sh. A MUTANT_… breaks one part of the rule; each of them must fail.
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef BEATS
#define BEATS 2 /* in flight at one moment: one of each daemon */
#endif
#ifndef TTL
#define TTL 3 /* length of a lease */
#endif
#ifndef PERIOD
#define PERIOD 1 /* a live worker renews so long after its last grant */
#endif
#ifndef LATE
#define LATE 0 /* and may take so long for it, or so long after the database came back */
#endif
#ifndef AFTER
#define AFTER 1 /* the row's setting: a beat later than that is a gap */
#endif
#ifndef GRACE
#define GRACE 1 /* the row's setting: how long an amnesty lasts */
#endif
/* One jump of the database's clock, forward or back. Back: less than TTL, see docs/model.md. */
#ifndef FORWARD
#define FORWARD 0
#endif
#ifndef BACK
#define BACK 0
#endif
/* A beat in flight gets no older than this: written later, it would say no more than "a gap". */
#define OLDEST (AFTER + 1)
/* Ages are kept from -BACK on, and up to where more makes no difference. */
#define AGE(age) (age + BACK)
#define MAX_AGE AGE(OLDEST + FORWARD + AFTER + 1 + BACK)
/* What is left of a lease is kept from BACK in the past, */
#define LEFT(left) (left + BACK)
/* and of an amnesty from as far in the past as a reading of the clock may lie. */
#define AMNESTY(left) (left + OLDEST + FORWARD + BACK)

mtype = { worker, sweep };

/*
 * LIVENESS looks at the other half: that the attempt of a dead worker is closed in the end. For that
 * outages are few, connections break in outages alone, a daemon that was stopped comes back, and
 * beats at least every BEAT_EVERY while it is there; and while the database is there a beat is
 * written, or cancelled, at most BEAT_TAKES after it read the clock.
 */
#ifdef LIVENESS
#ifndef OUTAGES
#define OUTAGES 2
#endif
#ifndef BEAT_EVERY
#define BEAT_EVERY 1
#endif
#ifndef BEAT_TAKES
#define BEAT_TAKES AFTER
#endif
#define HOLDS_UP_TIME BEAT_TOO_OLD /* endless beats within no time prove nothing */
byte outages;
byte absences;
bool away; /* the daemons are stopped on purpose */
#define MAY_BREAK (!up)
#define THERE (!away)
#define MUST_BEAT (up && !away && beat_age >= AGE(BEAT_EVERY))
#else
#define BEAT_TAKES OLDEST
#define HOLDS_UP_TIME false
#define MAY_BREAK true
#define THERE true
#define MUST_BEAT false
#endif

/* -- the database ------------------------------------------------------------------------------ */

bool up = true;
byte up_for; /* time since it came back, up to LATE */

/* The open attempt: whose it is, what is left of its lease (0: it is over). */
byte owner; /* a worker from 1; 0: no attempt is open */
byte left;

/* The heartbeat row. */
byte beat_age = AGE(0);		/* now - beat_at */
byte amnesty;			/* amnesty_until - now; at first it is long past */
bool covered;			/* lease_expires_at > protect_from, of the open attempt */

#define IN_FORCE(age) (amnesty + age > AMNESTY(AGE(0)))

byte lock;	 /* who has locked the run's row */
bool row_locked; /* a close of the open attempt is written and not committed */
byte new_left;	 /* of the lease that this transaction opens */

/* The heartbeat row in the snapshot of a close in flight (one at a time: it holds the lock). */
bool snapped;
byte snap_beat_age, snap_amnesty;
bool snap_covered;

/* -- the rule ---------------------------------------------------------------------------------- */

#ifdef DEADLINE
byte deadline = DEADLINE; /* what is left until deadline_at */
#define BEFORE_DEADLINE (deadline > 0)
#define UP_TO_DEADLINE(ttl) (ttl < deadline -> ttl : deadline)
#else
#define BEFORE_DEADLINE true
#define UP_TO_DEADLINE(ttl) LEFT(ttl)
#endif

/* What an owner's verb, and a look, ask. */
#ifdef MUTANT_PAST_DEADLINE
#define MAY_BE_PARDONED true
#else
#define MAY_BE_PARDONED BEFORE_DEADLINE
#endif
#define PARDONED (covered && (amnesty > AMNESTY(0) || beat_age > AGE(AFTER)) && MAY_BE_PARDONED)
#define IS_VALID (owner != 0 && (left > LEFT(0) || PARDONED))
/* What a close asks in its own write. */
#define SNAP_PARDONED \
	(snap_covered && (snap_amnesty > AMNESTY(0) || snap_beat_age > AGE(AFTER)) && MAY_BE_PARDONED)

#ifdef MUTANT_RENEWAL_STRICT
#define OWNER_IS_VALID (owner != 0 && left > LEFT(0))
#else
#define OWNER_IS_VALID IS_VALID
#endif
#ifdef MUTANT_NEVER_CONSULTED
#define LOOKS_VALID (owner != 0 && left > LEFT(0))
#else
#define LOOKS_VALID IS_VALID
#endif
#if defined(MUTANT_CONSULTED_AT_LOOK) || defined(MUTANT_NEVER_CONSULTED)
#define CLOSES (left <= LEFT(0))
#else
#define CLOSES (left <= LEFT(0) && !SNAP_PARDONED)
#endif

/* -- workers, as they see it and as they are --------------------------------------------------- */

bool holds[2];	 /* it believes that it holds the lease */
byte local_end[2]; /* what is left until it pauses */
byte since[2];	 /* time since it asked for its last grant, up to PERIOD + LATE */
/*
 * Live: since its last grant it renewed whenever it was due and the database was up. What the
 * amnesty promises, it promises to these. A worker that was stopped is not live until its next grant.
 */
bool live[2];
bool awaits[2]; /* it was due when the database came back, and still is */

bool flying[2];	   /* a renewal whose guard held and that is not written yet */
byte flying_left[2]; /* of the end that it will write */
byte flying_age[2];  /* since its guard held, up to PERIOD + LATE */

#define IS_DUE(w) (since[w] >= PERIOD)
/* The one assumption about live workers: time does not pass over a renewal that can be done. */
#define HURRIES(w) \
	(up && live[w] && IS_DUE(w) && since[w] >= PERIOD + LATE && up_for >= LATE)
/* And the one about the database: when it comes back, it stays for long enough that they can. */
#ifdef LIMIT_FLAPPING
#define TOO_SHORT(w) false
#else
#define TOO_SHORT(w) (live[w] && awaits[w])
#endif
#ifdef LIVENESS
#define MAY_RENEW(w) live[w] /* who is dead stays dead */
#else
#define MAY_RENEW(w) true
#endif
#define WORKS(w) (holds[w] && local_end[w] > 0)

/*
 * Beats in flight, the older one first: each has read the clock once, and waits, and writes. Which
 * daemon it comes from makes no difference, so daemons have no names here.
 */
byte beats;
byte reading_age[2];
bool reading_covers[2]; /* the open attempt's lease_expires_at > the reading */

/* -- what must hold ---------------------------------------------------------------------------- */

#define CLOSED_LIVE 1
#define REFUSED_LIVE 2
#define WORKS_ALONE 3
#define PAST_DEADLINE 4
#ifdef CHECK
#define CHECKED(property) (CHECK == property)
#else
#define CHECKED(property) true
#endif

#define VIOLATED(property, text) \
	if \
	:: CHECKED(property) -> printf("VIOLATED: "); printf(text); printf("\n"); assert(false) \
	:: else \
	fi

#ifdef REPLAY
byte clock_now;
#define CLOCK_GOES_ON clock_now++
#else
#define clock_now 0
#define CLOCK_GOES_ON skip
#endif
#define SAY(who, number) printf("%d: %e %d ", clock_now, who, number)

#ifndef LIVENESS
active proctype watcher()
{
end:	do
	:: atomic { CHECKED(WORKS_ALONE) && WORKS(0) && owner != 0 && owner != 1 ->
		printf("VIOLATED: worker 0 works under another's lease\n"); assert(false) }
	:: atomic { CHECKED(WORKS_ALONE) && WORKS(1) && owner != 0 && owner != 2 ->
		printf("VIOLATED: worker 1 works under another's lease\n"); assert(false) }
	od
}
#define FIRST_WORKER 1
#else
#define FIRST_WORKER 0
#endif

/* -- writes ------------------------------------------------------------------------------------ */

/* A lease that was granted ends later than any reading of the clock until now. */
inline lease_granted(until_left)
{
	left = until_left;
	covered = true;
	snap_covered = snapped;
	reading_covers[0] = (beats > 0);
	reading_covers[1] = (beats > 1)
}

inline worker_granted(w, age)
{
	holds[w] = true;
	local_end[w] = (left > LEFT(0) -> left - LEFT(0) : 0);
	since[w] = age;
	awaits[w] = (awaits[w] && IS_DUE(w)); /* a grant that was frozen on its way may be over */
	live[w] = ((live[w] || age <= LATE) && BEFORE_DEADLINE)
}

inline worker_stops(w)
{
	holds[w] = false;
	local_end[w] = 0;
	since[w] = 0;
	awaits[w] = false;
	live[w] = false
}

inline unlock()
{
	lock = 0;
	row_locked = false;
	new_left = 0;
	snapped = false; snap_beat_age = 0; snap_amnesty = 0; snap_covered = false
}

inline attempt_closed()
{
	owner = 0;
	left = 0;
	covered = false;
	reading_covers[0] = false;
	reading_covers[1] = false
}

/* A close as lease_expired takes its snapshot; then it writes what holds at that moment. */
inline close_starts()
{
	atomic {
		up ->
		printf("%d: a close starts, and reads the heartbeat row\n", clock_now);
		snapped = true;
		snap_beat_age = beat_age;
		snap_amnesty = amnesty;
		snap_covered = covered
	}
}

inline close_commits(who, number)
{
	SAY(who, number); printf("has closed the attempt of worker %d as lease_expired\n", owner - 1);
	if
	:: live[owner - 1] && holds[owner - 1] -> VIOLATED(CLOSED_LIVE, "a live worker is closed because of an outage")
	:: else
	fi;
	attempt_closed()
}

/* -- workers ----------------------------------------------------------------------------------- */

#define WORKER (_pid - FIRST_WORKER)
#define ME (WORKER + 1)

inline refused()
{
	SAY(worker, WORKER); printf("is refused\n");
	if
	:: live[WORKER] -> VIOLATED(REFUSED_LIVE, "a live worker is refused because of an outage")
	:: else
	fi;
	worker_stops(WORKER)
}

active [WORKERS] proctype a_worker()
{
end:	do
	/* renews: evaluates, waits for the row, writes */
	:: atomic {
		up && holds[WORKER] && IS_DUE(WORKER) && MAY_RENEW(WORKER) ->
		if
		:: owner == ME && OWNER_IS_VALID && !row_locked ->
			flying[WORKER] = true;
			flying_left[WORKER] = UP_TO_DEADLINE(TTL);
			SAY(worker, WORKER); printf("renews: the guard holds\n");
			if
			:: !BEFORE_DEADLINE -> VIOLATED(PAST_DEADLINE, "an owner is valid past the deadline")
			:: else
			fi
		:: row_locked -> goto end /* it waits: the same as coming later */
		:: else -> refused(); goto end
		fi
	   };
	   if
	   :: atomic {
		up && !row_locked ->
		if
		:: owner == ME ->
			lease_granted(flying_left[WORKER]);
			SAY(worker, WORKER); printf("has renewed, %d left\n", left - LEFT(0));
			worker_granted(WORKER, flying_age[WORKER])
		:: else -> refused()
		fi
	      }
	   :: atomic { MAY_BREAK -> SAY(worker, WORKER); printf("loses its renewal\n") }
	   fi;
	   d_step { flying[WORKER] = false; flying_left[WORKER] = 0; flying_age[WORKER] = 0 }

	/* is stopped: it renews when it goes on, if ever */
	:: atomic { live[WORKER] -> live[WORKER] = false; SAY(worker, WORKER); printf("is stopped\n") }
#ifndef LIVENESS
	/* crashes, and is started anew with nothing in its memory */
	:: atomic { holds[WORKER] -> worker_stops(WORKER); SAY(worker, WORKER); printf("crashes\n") }
#endif

	/* ends its attempt; what becomes of the run is no matter here: it can be claimed again */
	:: atomic {
		up && lock == 0 && holds[WORKER] && MAY_RENEW(WORKER) ->
		local_end[WORKER] = 0;
		if
		:: owner == ME && OWNER_IS_VALID -> lock = _pid + 1; row_locked = true
		:: else -> refused(); goto end
		fi
	   };
	   if
	   :: atomic {
		up ->
		SAY(worker, WORKER); printf("ends its attempt\n");
		attempt_closed();
		worker_stops(WORKER);
		unlock()
	      }
	   :: d_step { MAY_BREAK -> unlock() }
	   fi

	/*
	 * Claims; an attempt left open is closed first, if its lease is over. From when its own lease
	 * is counted it is held to be live: the grant is on its way.
	 */
	:: atomic {
		up && lock == 0 && !holds[WORKER] && BEFORE_DEADLINE && !LOOKS_VALID ->
		lock = _pid + 1;
		if
		:: owner == 0 -> goto opens
		:: else
		fi
	   };
	   close_starts();
	   if
	   :: atomic {
		up && CLOSES ->
		row_locked = true;
		printf("%d: the close finds one row\n", clock_now);
opens:		new_left = UP_TO_DEADLINE(TTL);
		since[WORKER] = 0;
		live[WORKER] = true;
		SAY(worker, WORKER); printf("opens an attempt, not committed yet\n")
	      }
	   :: d_step { up && !CLOSES -> unlock() }; goto end
	   :: d_step { MAY_BREAK -> unlock() }; goto end
	   fi;
	   if
	   :: atomic {
		up ->
		if
		:: owner != 0 -> close_commits(worker, WORKER)
		:: else
		fi;
		owner = ME;
		lease_granted(new_left);
		SAY(worker, WORKER); printf("has its lease, %d left\n", left - LEFT(0));
		worker_granted(WORKER, since[WORKER]);
		unlock()
	      }
	   :: atomic { MAY_BREAK -> worker_stops(WORKER); unlock() }
	   fi
	od
}

/* -- daemons ----------------------------------------------------------------------------------- */

#define BEAT_TOO_OLD (beats > 0 && reading_age[0] >= (up -> AGE(BEAT_TAKES) : AGE(OLDEST)))

/* The beat: one reading of the clock, then it waits for the row, then one write. */
inline beat(n)
{
	gap = (beat_age > reading_age[n] + AFTER || reading_age[n] > beat_age + AFTER);
#ifdef MUTANT_BEAT_READS_TWICE
	reading_age[n] = AGE(0);
	reading_covers[n] = (owner != 0 && left > LEFT(0));
#endif
	if
	:: gap ->
		amnesty = (AMNESTY(GRACE) > reading_age[n] - BACK -> AMNESTY(GRACE) - (reading_age[n] - BACK) : 0);
		covered = covered || reading_covers[n]
#ifdef MUTANT_PROTECT_MOVES
	:: !gap -> covered = reading_covers[n]
#else
	/* least(): protect_from goes back to the reading if that is older */
	:: !gap && IN_FORCE(reading_age[n]) -> covered = covered || reading_covers[n]
	:: !gap && !IN_FORCE(reading_age[n]) -> covered = reading_covers[n]
#endif
	fi;
	beat_age = reading_age[n];
	printf("%d: a daemon beats", clock_now);
	if
	:: gap -> printf(": a gap, amnesty\n")
	:: else -> printf("\n")
	fi;
	gap = false;
	landed(n)
}

inline landed(n)
{
	if
	:: n == 0 -> reading_age[0] = reading_age[1]; reading_covers[0] = reading_covers[1]
	:: else
	fi;
	reading_age[1] = 0; reading_covers[1] = false;
	beats--
}

active proctype daemons()
{
	bool gap;

end:	do
	:: d_step {
		up && THERE && beats < BEATS && !HOLDS_UP_TIME ->
		reading_age[beats] = AGE(0);
		reading_covers[beats] = (owner != 0 && left > LEFT(0));
		printf("%d: a daemon begins a beat\n", clock_now);
		beats++
	   }
	:: d_step { up && beats > 0 -> beat(0) }
	:: d_step { MAY_BREAK && beats > 0 -> landed(0) /* lost */ }
	:: d_step { up && beats > 1 -> beat(1) }
	:: d_step { MAY_BREAK && beats > 1 -> landed(1) }
	od
}

/* The sweep of whichever daemon: the run's lock lets through one at a time. */
active proctype a_sweep()
{
end:	do
	:: d_step {
		up && THERE && lock == 0 && left <= LEFT(0) && owner != 0 && !LOOKS_VALID ->
		lock = _pid + 1;
		printf("%d: a sweep locks and looks: the lease is over\n", clock_now)
	   };
	   close_starts();
	   if
	   :: d_step { up && CLOSES -> row_locked = true; printf("%d: the close finds one row\n", clock_now) }
	   :: d_step { up && !CLOSES -> unlock() }; goto end
	   :: d_step { MAY_BREAK -> unlock() }; goto end
	   fi;
	   if
	   :: atomic { up -> close_commits(sweep, 0); unlock() }
	   :: d_step { MAY_BREAK -> unlock() }
	   fi
	od
}

/* -- outages, and time ------------------------------------------------------------------------- */

#define SOMEBODY(what) (what(0) || what(1))

#define DOWN(what) what = (what > 0 -> what - 1 : 0)
#define UP(what, limit) what = (what < limit -> what + 1 : limit)

active proctype outage()
{
end:	do
	:: d_step {
#ifdef LIVENESS
		outages < OUTAGES &&
#endif
		up && !SOMEBODY(TOO_SHORT) ->
		up = false;
		up_for = 0;
#ifdef LIVENESS
		outages++;
#endif
		printf("%d: the database is away\n", clock_now)
	   }
	:: d_step {
		!up ->
		up = true;
		awaits[0] = live[0] && IS_DUE(0);
		awaits[1] = live[1] && IS_DUE(1);
		printf("%d: the database is back\n", clock_now)
	   }
	od
}

#ifdef LIVENESS
active proctype absence()
{
	do
	:: d_step { absences == 0 && !away -> away = true; absences++; printf("the daemons are stopped\n") }
	:: d_step { away -> away = false; printf("the daemons are started\n") }
	od
}

/* Alive: holds the lease and renews. */
#define ALIVE(w) (holds[w] && live[w])
#define DEAD_IS_OPEN (owner == 1 && !ALIVE(0) || owner == 2 && !ALIVE(1))
ltl dead_is_closed { [] (DEAD_IS_OPEN -> <> !DEAD_IS_OPEN) }
#endif

inline worker_ages(w)
{
	DOWN(local_end[w]);
	DOWN(flying_left[w]);
	if
	:: live[w] || holds[w] -> UP(since[w], PERIOD + LATE)
	:: else
	fi;
	if
	:: flying[w] -> UP(flying_age[w], PERIOD + LATE)
	:: else
	fi
}

#if FORWARD > 0 || BACK > 0
#define LESS(what, by) what = (what > by -> what - by : 0)
#define MORE(what, by, limit) what = (what + by < limit -> what + by : limit)

inline jump_forward()
{
	LESS(left, FORWARD); LESS(new_left, FORWARD); LESS(amnesty, FORWARD);
	LESS(flying_left[0], FORWARD); LESS(flying_left[1], FORWARD);
	MORE(beat_age, FORWARD, MAX_AGE);
	if
	:: snapped -> MORE(snap_beat_age, FORWARD, MAX_AGE); LESS(snap_amnesty, FORWARD)
	:: else
	fi;
	if
	:: beats > 0 -> reading_age[0] = reading_age[0] + FORWARD
	:: else
	fi;
	if
	:: beats > 1 -> reading_age[1] = reading_age[1] + FORWARD
	:: else
	fi;
	printf("%d: the clock of the database jumps forward by %d\n", clock_now, FORWARD)
}

#define LATER(what) \
	if \
	:: what > 0 -> what = what + BACK \
	:: else \
	fi

inline jump_back()
{
	LATER(left); LATER(new_left); LATER(amnesty); LATER(flying_left[0]); LATER(flying_left[1]);
	beat_age = beat_age - BACK;
	if
	:: snapped -> snap_beat_age = snap_beat_age - BACK; LATER(snap_amnesty)
	:: else
	fi;
	if
	:: beats > 0 -> reading_age[0] = reading_age[0] - BACK
	:: else
	fi;
	if
	:: beats > 1 -> reading_age[1] = reading_age[1] - BACK
	:: else
	fi;
	printf("%d: the clock of the database jumps back by %d\n", clock_now, BACK)
}

/* Workers count by their own clocks: nothing of theirs changes. */
active proctype jump()
{
end:	if
	:: d_step { up && FORWARD > 0 -> jump_forward() }
	:: d_step { up && BACK > 0 -> jump_back() }
	fi
}
#endif

active proctype clock()
{
end:	do
	:: d_step {
		!SOMEBODY(HURRIES) && !BEAT_TOO_OLD && !MUST_BEAT ->
		DOWN(left);
		DOWN(new_left);
#ifdef DEADLINE
		DOWN(deadline);
		if
		/* from here on nothing is promised */
		:: deadline == 0 -> live[0] = false; live[1] = false
		:: else
		fi;
#endif
		DOWN(amnesty);
		UP(beat_age, MAX_AGE);
		if
		:: snapped -> UP(snap_beat_age, MAX_AGE); DOWN(snap_amnesty)
		:: else
		fi;
		if
		:: up -> UP(up_for, LATE)
		:: else
		fi;
		worker_ages(0);
		worker_ages(1);
		if
		:: beats > 0 -> reading_age[0]++
		:: else
		fi;
		if
		:: beats > 1 -> reading_age[1]++
		:: else
		fi;
		CLOCK_GOES_ON;
		printf("%d: time passes\n", clock_now)
	   }
	od
}
