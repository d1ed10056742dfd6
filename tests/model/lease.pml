/*
 * lease.pml - the lease protocol of one run: workers, reconcilers, somebody who cancels, a clock.
 *
 * What it keeps of the real grain: a transaction locks the run, looks (in a newer snapshot),
 * decides, applies with guards that are evaluated again, and commits, each a step of its own that
 * anything else may come between and that a crash may end; a renewal takes no lock on the run, and
 * between its guard and its write any time may pass; others see a write when it is committed; an
 * answer may be lost after the commit. What it leaves out, on purpose: the constraints and triggers
 * of the database, so that the protocol has to hold without them.
 *
 * Sizes and what is looked at are set with -D: see run.sh, which names every configuration. A
 * MUTANT_… breaks one rule on purpose; each of them must fail.
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef RECONCILERS
#define RECONCILERS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 3 /* at most 3: the macros below count to three */
#endif
#ifndef OWNERS
#define OWNERS 3 /* owner tokens made in all: a restarted worker needs a new one */
#endif
#ifndef TTL
#define TTL 2
#endif

/* Words of the tables; 0 as an outcome: the attempt is open. */
mtype = { pending, running, completed, failed, cancelled, retry_released, lease_expired };
/* Commands, and the policies of a reconciler. */
mtype = { claim, end_attempt, reconcile, request_cancel };
mtype = { record, fail, requeue };
/* Who does it, for the traces. */
mtype = { worker, reconciler, somebody };

/* -- the database ------------------------------------------------------------------------------ */

/*
 * Times are kept as what is left until then, and time passes by counting all of them down: every
 * guard compares a time with the clock, or two times with each other. So there is no last moment:
 * time is unbounded. Only a trace shows a clock.
 */
#ifdef REPLAY
byte clock_now;
#define CLOCK_GOES_ON clock_now++
#else
#define clock_now 0
#define CLOCK_GOES_ON skip
#endif

/* the run's row */
mtype status = pending;
bool cancel;

/* its attempts by attempt_no, from 1; owner 0: there is no such row */
byte owner[4], left[4]; /* left: lease_expires_at - now; 0: the lease is over */
mtype outcome[4];

#ifdef LEFTOVER
byte lock = 255; /* until the leftover is there */
#else
byte lock; /* who has locked the run's row: a process number from 1, 0: nobody */
#endif
byte writing; /* the attempt that the holder of the lock has updated and not yet committed */
byte new_left; /* what is left of the lease that it is about to grant */

#define IS_OPEN(n) (owner[n] != 0 && outcome[n] == 0)
#define IS_VALID(n) (IS_OPEN(n) && left[n] > 0)
#define IS_OVER(n) (IS_OPEN(n) && left[n] == 0)
#define STANDS_CLOSED(n, me) (owner[n] == me && outcome[n] != 0)
#define OPEN_NO (IS_OPEN(3) -> 3 : (IS_OPEN(2) -> 2 : (IS_OPEN(1) -> 1 : 0)))
#define LAST_NO (owner[3] -> 3 : (owner[2] -> 2 : (owner[1] -> 1 : 0)))
#define IS_TERMINAL (status != pending && status != running)

/* -- what the workers believe ------------------------------------------------------------------ */

byte next_owner = 1;
byte token_owner[WORKERS];   /* 0: none made yet */
byte token_attempt[WORKERS]; /* 0: holds no lease */
/*
 * local_end: a worker touches the outside only before it. It is counted from before the request was
 * sent, so it is at most the end of the lease that was granted: here exactly that, the worst case.
 */
byte local_end[WORKERS];
bool ends_run[WORKERS]; /* it asked to end its attempt: it works no more, whatever is granted */

/* A renewal in flight: its guard held and its new end is computed, it is not written yet. */
byte flying[WORKERS];      /* the attempt; 0: none is in flight */
byte flying_left[WORKERS]; /* of the end that it will write */
bool outdated[WORKERS];	   /* the row was changed since */
bool unheard[WORKERS];	   /* whoever sent it is gone: nobody takes the answer */

#define WORKS(w) (token_attempt[w] != 0 && !ends_run[w] && local_end[w] > 0)
#define OTHER_VALID(w) \
	(IS_VALID(1) && token_attempt[w] != 1 || IS_VALID(2) && token_attempt[w] != 2 || \
	 IS_VALID(3) && token_attempt[w] != 3)
#define OWN_CLOSED(w) \
	(STANDS_CLOSED(1, token_owner[w]) || STANDS_CLOSED(2, token_owner[w]) || \
	 STANDS_CLOSED(3, token_owner[w]))

/* -- what must hold ---------------------------------------------------------------------------- */

/* CHECK=… looks at one of them alone, so that a mutant's trace shows that one. */
#define ONE_VALID_OWNER 1
#define ONE_OPEN_ATTEMPT 2
#define RUN_AGREES 3
#define WORKS_ALONE 4
#define NOT_CLOSED_AT_WORK 5
#define CLOSED_STAYS 6
#define NUMBERS 7
#ifdef CHECK
#define CHECKED(property) (CHECK == property)
#else
#define CHECKED(property) true
#endif

#define TWO_VALID ((IS_VALID(1) + IS_VALID(2) + IS_VALID(3)) > 1)
#define TWO_OPEN ((IS_OPEN(1) + IS_OPEN(2) + IS_OPEN(3)) > 1)
#ifdef LEFTOVER
/* attempt 1 was found open on a pending run; it is the one exception */
#define DISAGREES \
	(status != running && (IS_OPEN(2) || IS_OPEN(3)) || IS_TERMINAL && IS_OPEN(1))
#else
#define DISAGREES (status != running && OPEN_NO != 0)
#endif

#define VIOLATED(property, text) \
	if \
	:: CHECKED(property) -> printf("VIOLATED: "); printf(text); printf("\n"); assert(false) \
	:: else \
	fi

#define WATCH(property, condition, text) \
	:: atomic { \
		CHECKED(property) && (condition) -> \
		printf("VIOLATED: "); printf(text); printf("\n"); assert(false) \
	   }

#ifndef LIVENESS
active proctype watcher()
{
end:	do
	WATCH(ONE_VALID_OWNER, TWO_VALID, "two owners with a valid lease")
	WATCH(ONE_OPEN_ATTEMPT, TWO_OPEN, "two open attempts of one run")
	WATCH(RUN_AGREES, DISAGREES, "a run that is not running has an open attempt")
	WATCH(WORKS_ALONE, WORKS(0) && OTHER_VALID(0), "worker 0 works under another's valid lease")
	WATCH(NOT_CLOSED_AT_WORK, WORKS(0) && OWN_CLOSED(0), "the attempt of worker 0, at work, is closed")
#if WORKERS > 1
	WATCH(WORKS_ALONE, WORKS(1) && OTHER_VALID(1), "worker 1 works under another's valid lease")
	WATCH(NOT_CLOSED_AT_WORK, WORKS(1) && OWN_CLOSED(1), "the attempt of worker 1, at work, is closed")
#endif
	od
}
#endif

/* -- a transaction: lock, look, decide, apply, commit ------------------------------------------ */

/* Its variables. They are zero outside of a transaction, which keeps the states few. */
#define TRANSACTION \
	mtype command, policy, close_as, to; \
	byte me, open_no, close_no, refresh_no; \
	bool opens, marks, closed, applies

inline forget_transaction()
{
	command = 0; policy = 0; close_as = 0; to = 0;
	me = 0; open_no = 0; close_no = 0; refresh_no = 0;
	opens = false; marks = false; closed = false; applies = false
}

inline unlock()
{
	writing = 0;
	new_left = 0;
	lock = 0
}

/* Rolled back by the server: the client crashed, the connection broke, an error. */
#define SAY(who, number) printf("%d: %e %d", clock_now, who, number)

inline roll_back(who, number)
{
	d_step {
		SAY(who, number); printf(" rolls back\n");
		unlock();
		forget_transaction()
	}
}

/* The rows of the table in machine.c; a row that is not here changes nothing in this model. */
inline decide_claim()
{
	if
	:: STANDS_CLOSED(1, me) || STANDS_CLOSED(2, me) || STANDS_CLOSED(3, me)
	:: else ->
		if
		:: status == running && open_no != 0 && owner[open_no] == me && left[open_no] > 0 ->
			refresh_no = open_no; applies = true
		:: status == pending && open_no != 0 && left[open_no] == 0 && owner[open_no] != me &&
		   !cancel && LAST_NO < ATTEMPTS ->
#ifndef MUTANT_TAKEOVER_KEEPS
			close_no = open_no; close_as = lease_expired;
#endif
			opens = true; to = running; applies = true
		:: !IS_TERMINAL && open_no == 0 && !cancel && LAST_NO < ATTEMPTS ->
			opens = true; to = running; applies = true
		:: else
		fi
	fi
}

inline decide_end(no)
{
	if
	:: status == running && open_no != 0 && open_no == no && owner[no] == me && left[no] > 0 ->
		if
		:: !cancel -> close_as = retry_released; to = pending
		:: !cancel -> close_as = completed; to = completed
		:: cancel -> close_as = cancelled; to = cancelled
		fi;
		close_no = no; applies = true
	:: else
	fi
}

inline decide_reconcile()
{
	if
	:: open_no != 0 && left[open_no] > 0
	:: else ->
		if
		:: status == running && cancel -> to = cancelled
		:: status == running && !cancel && policy == fail -> to = failed
		:: status == running && !cancel && policy == requeue -> to = pending
		:: else
		fi;
		close_no = open_no;
		if
		:: close_no != 0 -> close_as = lease_expired
		:: else
		fi;
		applies = (close_no != 0 || to != 0)
	fi
}

inline decide_request_cancel()
{
	if
	:: status == running && open_no != 0 -> marks = !cancel; applies = marks
	:: status == pending && open_no != 0 && left[open_no] > 0
	:: !IS_TERMINAL && !(status == running && open_no != 0) &&
	   !(status == pending && open_no != 0 && left[open_no] > 0) ->
		to = cancelled; close_no = open_no; applies = true;
		if
		:: close_no != 0 -> close_as = lease_expired
		:: else
		fi
	:: IS_TERMINAL
	fi
}

/* One snapshot, newer than the lock, and one reading of the clock. `no`: the token's attempt. */
inline look_and_decide(who, number, no)
{
	atomic {
		open_no = OPEN_NO;
		if
		:: command == claim -> decide_claim()
		:: command == end_attempt -> decide_end(no)
		:: command == reconcile ->
			if
			:: policy = record
			:: policy = fail
			:: policy = requeue
			fi;
			decide_reconcile()
		:: command == request_cancel -> decide_request_cancel()
		fi;
		SAY(who, number);
		printf(" looks: run %e, open attempt %d", status, open_no);
		if
		:: applies -> printf("\n")
		:: else -> printf(": nothing to write\n")
		fi;
#ifdef MUTANT_REFRESH_SHORTENS
		new_left = (refresh_no != 0 -> TTL : 0); /* counted from the look, and not compared */
#endif
		command = 0; policy = 0; open_no = 0
	}
}

/* close_and_move.sql, open_attempts.sql, renew_many.sql: every guard again, on the row as it is. */
inline apply(who, number)
{
	d_step {
		true;
		if
		:: close_no != 0 ->
#if defined(MUTANT_CLOSE_UNGUARDED)
			closed = (outcome[close_no] == 0);
#elif defined(MUTANT_EARLY_LOOK)
			closed = true;
#else
			closed = (outcome[close_no] == 0 &&
				(close_as == lease_expired -> left[close_no] == 0 : owner[close_no] == me));
#endif
			SAY(who, number);
			printf(" closes attempt %d as %e: %d row\n", close_no, close_as, closed);
			if
			:: closed -> writing = close_no
			:: else ->
				close_no = 0;
#ifndef MUTANT_RUN_WITHOUT_CLOSE
				to = 0; opens = false
#endif
			fi
		:: else
		fi;
#if defined(MUTANT_TAKEOVER_KEEPS) || defined(MUTANT_EARLY_LOOK)
#define MAY_OPEN true
#else
#define MAY_OPEN (OPEN_NO == 0 || closed)
#endif
		if
		:: opens && MAY_OPEN ->
			new_left = TTL;
			SAY(who, number); printf(" opens the next attempt\n")
		:: opens && !(MAY_OPEN) -> opens = false; to = 0
		:: !opens && refresh_no != 0 ->
			if
			:: outcome[refresh_no] == 0 && owner[refresh_no] == me && left[refresh_no] > 0 ->
				writing = refresh_no;
#ifndef MUTANT_REFRESH_SHORTENS
				new_left = TTL /* greatest(): nothing is ever left of more than TTL */
#endif
			:: else -> refresh_no = 0
			fi
		:: else
		fi
	}
}

inline row_changed(no)
{
	if
	:: flying[0] == no -> outdated[0] = true
	:: else
	fi;
#if WORKERS > 1
	if
	:: flying[1] == no -> outdated[1] = true
	:: else
	fi
#endif
}

/* From here on others see it. Within an atomic block of the caller, who takes the answer. */
inline commit(who, number)
{
	true;
	if
	:: close_no != 0 ->
		if
		:: outcome[close_no] != 0 -> VIOLATED(CLOSED_STAYS, "a closed attempt changed")
		:: else
		fi;
		outcome[close_no] = close_as;
		left[close_no] = 0 /* nothing reads it any more */
	:: else
	fi;
	if
	:: opens ->
		open_no = LAST_NO + 1;
		if
		:: open_no > 3 || owner[open_no] != 0 || open_no > 1 && owner[open_no - 1] == 0 ->
			VIOLATED(NUMBERS, "attempt numbers have a gap or a repeat")
		:: else
		fi;
		owner[open_no] = me;
		left[open_no] = new_left
	:: refresh_no != 0 ->
		left[refresh_no] = new_left;
		row_changed(refresh_no)
	:: else
	fi;
	if
	:: to != 0 && status != to ->
		if
		:: IS_TERMINAL -> VIOLATED(RUN_AGREES, "a run that had ended changed")
		:: else
		fi;
		status = to
	:: else
	fi;
	if
	:: marks -> cancel = true
	:: else
	fi;
	SAY(who, number);
	printf(" commits: run %e", status);
	if
	:: opens -> printf(", attempt %d open until %d\n", open_no, clock_now + new_left)
	:: refresh_no != 0 -> printf(", attempt %d refreshed until %d\n", refresh_no, clock_now + new_left)
	:: else -> printf("\n")
	fi
}

/* -- workers ----------------------------------------------------------------------------------- */

inline stop_holding(w)
{
	token_owner[w] = 0;
	token_attempt[w] = 0;
	local_end[w] = 0;
	ends_run[w] = false;
	unheard[w] = (flying[w] != 0)
}

inline take_grant(w, no, until)
{
	token_attempt[w] = no;
	if
	:: until > local_end[w] && !ends_run[w] -> local_end[w] = until
	:: else
	fi
}

#define WORKER (_pid - FIRST_WORKER)
#ifdef LIVENESS
#define FIRST_WORKER 0
#else
#define FIRST_WORKER 1 /* the watcher is process 0 */
#endif

#ifdef TRIES
#define MAY_TRY (tries < TRIES)
#else
#define MAY_TRY true
#endif

#ifdef MUTANT_EARLY_LOOK
#define MAY_LOCK true
#define TAKE_LOCK skip
#define LATE_LOCK atomic { lock == 0 -> lock = _pid + 1; printf("%d: process %d locks\n", clock_now, _pid) }
#else
#define MAY_LOCK (lock == 0)
#define TAKE_LOCK lock = _pid + 1
#define LATE_LOCK skip
#endif

active [WORKERS] proctype a_worker()
{
	TRANSACTION;
#ifdef TRIES
	byte tries;
#endif

end:	do ::
	atomic {
		if
		/* claims; also again after a lost answer, and while it holds the lease: a refresh */
		:: MAY_LOCK && MAY_TRY && !ends_run[WORKER] &&
		   (token_owner[WORKER] != 0 || next_owner <= OWNERS) ->
			if
			:: token_owner[WORKER] == 0 -> token_owner[WORKER] = next_owner; next_owner++
			:: else
			fi;
			command = claim
		/* ends its attempt: it stops its work first */
		:: MAY_LOCK && MAY_TRY && token_attempt[WORKER] != 0 ->
			command = end_attempt;
			ends_run[WORKER] = true;
			local_end[WORKER] = 0
		/* dies, and is started anew with nothing in its memory */
		:: token_owner[WORKER] != 0 ->
			SAY(worker, WORKER); printf(" crashes\n");
			stop_holding(WORKER);
			goto end
		fi;
		TAKE_LOCK;
		me = token_owner[WORKER];
#ifdef TRIES
		tries++;
#endif
		SAY(worker, WORKER); printf(" begins as owner %d: %e\n", me, command)
	};
	look_and_decide(worker, WORKER, token_attempt[WORKER]);
	LATE_LOCK;
	if
	:: atomic { !applies ->
		/* an owner that stands on a closed attempt makes a new one; one that cannot end stops */
		if
		:: OWN_CLOSED(WORKER) || ends_run[WORKER] -> stop_holding(WORKER)
		:: else
		fi;
		unlock();
		forget_transaction();
		goto end
	   }
	:: else
	fi;
	if
	:: apply(worker, WORKER)
	/* crashed, or stopped for so long that the server ended the idle transaction */
	:: roll_back(worker, WORKER); goto end
#ifdef MUTANT_IDLE_IN_TRANSACTION
	:: atomic { true -> SAY(worker, WORKER); printf(" is stopped between its two round trips\n") }; false
#endif
	fi;
	if
	:: atomic {
		commit(worker, WORKER);
		if
		:: opens || refresh_no != 0 ->
			if
			:: opens -> refresh_no = open_no
			:: else
			fi;
#ifdef MUTANT_LOCAL_END_LATE
			new_left = TTL; /* counted from when the answer came */
#endif
			take_grant(WORKER, refresh_no, new_left)
		:: closed && ends_run[WORKER] -> stop_holding(WORKER)
		:: else
		fi;
		unlock();
		forget_transaction()
	   }
	:: atomic {
		commit(worker, WORKER);
		SAY(worker, WORKER); printf(" does not get the answer\n");
		unlock();
		forget_transaction()
	   }
	:: roll_back(worker, WORKER)
	fi
	od
}

/*
 * The heartbeat of a worker beside its transactions. One statement: its guard is evaluated and the
 * new end computed, then it waits for the row, then it writes. PostgreSQL evaluates the guard again
 * only if the row was changed meanwhile; a lock that was rolled back, or mere time, passes unseen.
 */
#define HEARTBEAT (_pid - FIRST_WORKER - WORKERS)

active [WORKERS] proctype a_heartbeat()
{
	byte no;

end:	do
	:: atomic {
		token_attempt[HEARTBEAT] != 0 ->
		no = token_attempt[HEARTBEAT];
		if
		:: outcome[no] == 0 && owner[no] == token_owner[HEARTBEAT] && left[no] > 0 ->
			flying[HEARTBEAT] = no;
			flying_left[HEARTBEAT] = TTL;
			SAY(worker, HEARTBEAT); printf(" renews attempt %d: the guard holds\n", no)
		:: else ->
			SAY(worker, HEARTBEAT); printf(" renews attempt %d: refused\n", no);
			stop_holding(HEARTBEAT);
			no = 0;
			goto end
		fi
	   };
	if
	:: atomic {
		writing != no ->
		if
		:: outcome[no] == 0 && !outdated[HEARTBEAT]
		:: outcome[no] == 0 && outdated[HEARTBEAT] && left[no] > 0 -> flying_left[HEARTBEAT] = TTL
		:: else -> no = 0
		fi;
		SAY(worker, HEARTBEAT);
		if
		:: no != 0 ->
			left[no] = flying_left[HEARTBEAT];
			printf(" renewed attempt %d until %d\n", no, clock_now + flying_left[HEARTBEAT])
		:: else -> printf(" renews attempt %d: refused after a wait\n", flying[HEARTBEAT])
		fi;
		if
		:: !unheard[HEARTBEAT] && no != 0 -> take_grant(HEARTBEAT, no, flying_left[HEARTBEAT])
		:: !unheard[HEARTBEAT] && no == 0 -> stop_holding(HEARTBEAT)
		:: true /* the answer is lost */
		fi
	   }
	:: atomic { SAY(worker, HEARTBEAT); printf(": its renewal is lost\n") }
	fi;
	d_step {
		no = 0;
		flying[HEARTBEAT] = 0; flying_left[HEARTBEAT] = 0;
		outdated[HEARTBEAT] = false; unheard[HEARTBEAT] = false
	}
	od
}

/* -- reconcilers, cancellation, the clock ------------------------------------------------------ */

#define FIRST_RECONCILER (FIRST_WORKER + 2 * WORKERS)
#define RECONCILER (_pid - FIRST_RECONCILER)
#ifdef LIVENESS
/* One of them lives; the other crashes now and then, not for ever with the lock in its hands. */
byte crashes;
#define MAY_CRASH (_pid != FIRST_RECONCILER && crashes < 2)
#define CRASHES atomic { MAY_CRASH -> crashes++; roll_back(reconciler, RECONCILER) }
#else
#define CRASHES roll_back(reconciler, RECONCILER)
#endif

/* What a scan finds; what is locked is left to a later one (SKIP LOCKED). */
#define FINDS (OPEN_NO != 0 && IS_OVER(OPEN_NO) || OPEN_NO == 0 && status == running)

active [RECONCILERS] proctype a_reconciler()
{
	TRANSACTION;

end:	do ::
	atomic {
		MAY_LOCK && FINDS ->
		command = reconcile;
		TAKE_LOCK;
		SAY(reconciler, RECONCILER); printf(" begins\n")
	};
	if
	:: look_and_decide(reconciler, RECONCILER, 0)
	:: CRASHES; goto end
	fi;
	LATE_LOCK;
	if
	:: atomic { !applies -> unlock(); forget_transaction(); goto end }
	:: else
	fi;
	if
	:: apply(reconciler, RECONCILER)
	:: CRASHES; goto end
	fi;
	if
	:: atomic { commit(reconciler, RECONCILER); unlock(); forget_transaction() }
	:: CRASHES
	fi
	od
}

#ifndef NO_CANCEL
active proctype one_who_cancels()
{
	TRANSACTION;

end:	atomic {
		MAY_LOCK ->
		command = request_cancel;
		TAKE_LOCK;
		SAY(somebody, 0); printf(" begins\n")
	};
	look_and_decide(somebody, 0, 0);
	LATE_LOCK;
	if
	:: applies ->
		apply(somebody, 0);
		atomic { commit(somebody, 0); unlock(); forget_transaction() }
	:: else -> d_step { unlock(); forget_transaction() }
	fi
}
#endif

#define COUNT_DOWN(what) what = (what > 0 -> what - 1 : 0)
#define ANYTHING_LEFT \
	(left[1] + left[2] + left[3] + new_left + local_end[0] + flying_left[0] \
	 + local_end[WORKERS - 1] + flying_left[WORKERS - 1] > 0)

active proctype clock()
{
#ifdef LEFTOVER
	/* an old writer left attempt 1 open on a pending run; worker 0 is its owner */
	d_step {
		owner[1] = 1;
		left[1] = 1;
		token_owner[0] = 1;
		token_attempt[0] = 1;
		local_end[0] = 1;
		next_owner = 2;
		lock = 0;
		printf("%d: attempt 1 of worker 0 is open, its run is pending\n", clock_now)
	};
#endif
end:	do
	:: d_step {
		ANYTHING_LEFT ->
		COUNT_DOWN(left[1]); COUNT_DOWN(left[2]); COUNT_DOWN(left[3]);
		COUNT_DOWN(new_left);
		COUNT_DOWN(local_end[0]); COUNT_DOWN(flying_left[0]);
#if WORKERS > 1
		COUNT_DOWN(local_end[1]); COUNT_DOWN(flying_left[1]);
#endif
		CLOCK_GOES_ON;
		printf("%d: time passes\n", clock_now)
	   }
	od
}

#ifdef LIVENESS
/* Every expired attempt is eventually closed, or was renewed by a renewal in flight over its end. */
#define EXPIRED (IS_OVER(1) || IS_OVER(2) || IS_OVER(3))
ltl expired_is_closed { [] (EXPIRED -> <> !EXPIRED) }
#endif
