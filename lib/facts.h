/*
 * facts.h - what the reading side shares with the sweep: the check of a database.
 */
#ifndef LEASE_FACTS_H
#define LEASE_FACTS_H

#include "pipeline.h"

/* Two statements: is it a writable primary, and does it have the schema that we know? */
struct database_check {
	int step;
};

struct operation database_check_operation(struct database_check *check);

#endif
