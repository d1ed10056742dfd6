/*
 * commands.c - the commands of leasectl, in the order in which its help lists them.
 */
#include "command.h"

/* clang-format off */
const struct command *const command_table[] = {
	&command_migrate,
	&command_submit,
	&command_cancel,
	&command_resume,
	&command_release,
	&command_exec,
	&command_work,
	&command_status,
	&command_runs,
	&command_history,
	&command_explain,
	&command_events,
	&command_content,
	&command_sweep,
	&command_audit,
	&command_archive,
	NULL,
};
/* clang-format on */
