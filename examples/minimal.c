/* minimal.c - the smallest honest worker: claims what is due, works in steps, renews in time. */
#include <stdio.h>
#include <libpq-fe.h>
#include <lease.h>

static void work_a_little(const char *run_id, int step)
{
	printf("%s step %d\n", run_id, step); /* yours; short compared to the lease */
}

int main(void)
{
	PGconn *conn = PQconnectdb(""); /* PGHOST, PGDATABASE, PGUSER … */
	char owner[LEASE_ID_MAX + 1];
	struct lease_claim claim = { .owner = owner, .ttl = 30 * LEASE_SECOND };
	struct lease_grant lease;
	struct lease_error error;
	int r;

	while ((r = lease_owner_generate("minimal", owner, &error)) == 0 &&
	       (r = lease_claim_next(conn, &claim, &lease, &error)) == 0) {
		struct lease_finish finish = { .token = &lease.token };

		for (int step = 0; r == 0 && step < 100 && !lease.cancel_requested; step++) {
			if (lease.local_end - lease_clock_boottime() < claim.ttl * 2 / 3)
				r = lease_renew_lease(conn, &lease.token, claim.ttl, 0, &lease,
						      &error);
			if (r == 0 && lease_clock_boottime() >= lease.local_end)
				r = LEASE_EXPIRED; /* too late, or at the run's deadline */
			if (r == 0) /* refused, failed, over: not one step more */
				work_a_little(lease.token.run_id, step);
		}
		finish.status = lease.cancel_requested ? LEASE_RUN_CANCELLED : LEASE_RUN_COMPLETED;
		if (r != 0 || (r = lease_set_terminal_status(conn, &finish, NULL, &error)) != 0)
			break; /* what is not ended here runs out, and the reconciler sees to it */
	}
	if (r != LEASE_NOT_FOUND) /* not_found: nothing is due */
		fprintf(stderr, "%s\n", r < 0 ? error.message : lease_refusal_name(r));
	PQfinish(conn);
	return r != LEASE_NOT_FOUND;
}
