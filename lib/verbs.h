/*
 * verbs.h - what the public verbs share: checks of arguments, and one command on one run.
 *
 * The checks refuse with LEASE_E_INVALID and a text that names the argument and what is allowed.
 */
#ifndef LEASE_VERBS_H
#define LEASE_VERBS_H

#include "txn.h"

int check_id(const char *name, const char *value, struct lease_error *reterr);
int check_optional_id(const char *name, const char *value, struct lease_error *reterr);
int check_optional_ref(const char *name, const char *value, struct lease_error *reterr);
int check_message(const char *value, struct lease_error *reterr);
int check_reason(const char *code, const char *message, struct lease_error *reterr);
int check_duration(const char *name, int64_t value, int64_t min, struct lease_error *reterr);
int check_token(const struct lease_token *token, struct lease_error *reterr);
int64_t effective_timeout(int64_t timeout);

/* Runs a transaction. Its items' strings live until txn_done, whatever came of it. */
int run_txn(PGconn *conn, struct txn *txn, int64_t timeout, struct lease_error *reterr);
/* 0 or the refusal. A guard that did not hold at the write tells as a refusal as well. */
int result_of(const struct txn_item *item);
/* One command on one run, all in one. */
int run_change(PGconn *conn, const struct lease_command *command, int64_t timeout,
	       struct lease_change *ret, struct lease_error *reterr);

void copy_id(char to[LEASE_ID_MAX + 1], const char *from);
void copy_ref(char to[LEASE_REF_MAX + 1], const char *from);

#endif
