/*
 * leasectl audit - every run and node whose status its facts do not explain.
 *
 * There must be none. Reads all runs, in pages. Must never: write to the database.
 */
#include <inttypes.h>
#include <unistd.h>

#include "command.h"
#include "failure.h"
#include "json.h"
#include "table.h"

#define PAGE 5000

struct audit {
	const struct output *output;
	struct json json;
	struct table *table;
	int64_t runs, legacy, unexplained;
	bool shows_progress;
};

static void write_fault(struct json *json, const struct lease_unexplained *fault)
{
	json_begin_object(json, NULL);
	json_text(json, "run_id", fault->run_id);
	json_text(json, "node_id", fault->node_id[0] ? fault->node_id : NULL);
	json_text(json, "status", fault->status);
	if (fault->newest_no > 0)
		json_number(json, "newest_no", fault->newest_no);
	else
		json_null(json, "newest_no");
	json_text(json, "newest_outcome", fault->newest_outcome);
	json_text(json, "reason", fault->reason);
	json_end_object(json);
}

static void add_fault(struct table *table, const struct lease_unexplained *fault)
{
	table_add(table, STYLE_PLAIN, fault->run_id);
	table_add(table, STYLE_PLAIN, fault->node_id[0] ? fault->node_id : NULL);
	table_add(table, STYLE_BAD, fault->status);
	if (fault->newest_no > 0)
		table_addf(table, STYLE_PLAIN, "%" PRId32 " %s", fault->newest_no,
			   fault->newest_outcome ? fault->newest_outcome
						 : lease_outcome_name(LEASE_OUTCOME_NONE));
	else
		table_add(table, STYLE_PLAIN, NULL);
	table_add(table, STYLE_PLAIN, fault->reason);
}

static void show_progress(const struct audit *audit, bool last)
{
	if (!audit->shows_progress)
		return;
	if (last)
		fputs("\r\033[K", stderr);
	else
		fprintf(stderr, "\r%" PRId64 " runs looked at", audit->runs);
	fflush(stderr);
}

static void take_page(struct audit *audit, const struct lease_audit_page *page)
{
	audit->runs += page->runs;
	audit->legacy += page->legacy;
	audit->unexplained += (int64_t)page->n;
	for (size_t i = 0; i < page->n; i++) {
		if (audit->output->json)
			write_fault(&audit->json, &page->unexplained[i]);
		else
			add_fault(audit->table, &page->unexplained[i]);
	}
	show_progress(audit, false);
}

static int read_pages(PGconn *conn, struct audit *audit)
{
	struct lease_audit_page *page;
	struct lease_error error;
	char after[LEASE_ID_MAX + 1] = "";
	bool more = true;
	int r = 0;

	while (r == 0 && more) {
		r = lease_read_audit(conn, after, PAGE, &page, &error);
		if (r < 0)
			break;
		take_page(audit, page);
		more = page->runs == PAGE;
		snprintf(after, sizeof(after), "%s", page->last_run_id);
		lease_audit_page_free(page);
	}
	show_progress(audit, true);
	return r < 0 ? fail_with_error("cannot audit", &error) : 0;
}

static void begin(struct audit *audit, const struct output *output)
{
	static const struct table_column columns[] = {
		{ "run", false, true },     { "node", false, true },   { "status", false, false },
		{ "newest", false, false }, { "reason", false, true },
	};

	*audit = (struct audit){ .output = output, .shows_progress = isatty(STDERR_FILENO) == 1 };
	if (!output->json) {
		audit->table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));
		return;
	}
	json_init(&audit->json, output->file);
	json_begin_object(&audit->json, NULL);
	json_begin_array(&audit->json, "unexplained");
}

static void end(struct audit *audit)
{
	const struct output *output = audit->output;

	if (output->json) {
		json_end_array(&audit->json);
		json_number(&audit->json, "runs", audit->runs);
		json_number(&audit->json, "legacy", audit->legacy);
		json_end_object(&audit->json);
		return;
	}
	if (audit->unexplained > 0) {
		table_print(audit->table);
		putc('\n', output->file);
	}
	fprintf(output->file, "%" PRId64 " runs looked at, %" PRId64 " legacy, ", audit->runs,
		audit->legacy);
	fprintf(output->file, "%s%" PRId64 " unexplained%s\n",
		style_on(output, audit->unexplained ? STYLE_BAD : STYLE_GOOD), audit->unexplained,
		style_off(output, audit->unexplained ? STYLE_BAD : STYLE_GOOD));
}

static int run_audit(struct context *context)
{
	struct audit audit;
	PGconn *conn;
	int r = connection_open(&context->source, CONNECTION_READ, &conn);

	if (r)
		return r;
	begin(&audit, &context->output);
	r = read_pages(conn, &audit);
	if (r == 0)
		end(&audit);
	if (r == 0 && audit.unexplained > 0)
		r = fail(EX_DATAERR, "the facts do not explain everything: see above");
	table_free(audit.table);
	PQfinish(conn);
	return r;
}

const struct command command_audit = {
	.name = "audit",
	.summary = "find runs whose status their attempts do not explain",
	.description =
		"Looks at all runs. Lists each run whose status does not follow from its attempts, and\n"
		"each node whose state does not follow from its executions: there must be none (exit\n"
		"code 65 if there is one). Legacy runs, without attempts and without an event that says\n"
		"how they came to be what they are, are counted apart.",
	.run = run_audit,
};
