/*
 * leasectl sweep --dry-run - what a sweep would close now, and what each run would become.
 *
 * The decisions are liblease's, the same that the reconciler takes. Must never: write to the
 * database.
 */
#include <inttypes.h>

#include "command.h"
#include "failure.h"
#include "json.h"
#include "table.h"

enum { SWEEP_DRY_RUN, SWEEP_POLICY, SWEEP_LOSSES };

static const struct option sweep_options[] = {
	[SWEEP_DRY_RUN] = { "dry-run", 0, OPTION_FLAG, NULL, "say it, do nothing; must be given" },
	[SWEEP_POLICY] = { "policy", 0, OPTION_TEXT, "POLICY",
			   "record, fail or requeue; without it that of --config, or record" },
	[SWEEP_LOSSES] = { "max-lease-losses", 0, OPTION_NUMBER, "N",
			   "with requeue: so many losses in a row fail the run" },
};

/* What the callbacks write to. */
struct preview {
	const struct output *output;
	struct json json;
	struct table *table;
	int64_t closed, moved;
};

static void write_closed(struct json *json, const struct lease_closed *closed)
{
	bool closes = closed->attempt_no > 0;

	json_begin_object(json, NULL);
	json_text(json, "run_id", closed->run_id);
	if (closes)
		json_number(json, "attempt_no", closed->attempt_no);
	else
		json_null(json, "attempt_no");
	json_text(json, "owner", closed->owner);
	json_time(json, "lease_expires_at", closed->lease_expires_at);
	json_text(json, "outcome", closes ? lease_outcome_name(LEASE_OUTCOME_LEASE_EXPIRED) : NULL);
	json_bool(json, "moved", closed->moved);
	json_text(json, "status", lease_run_status_name(closed->status));
	json_text(json, "error_code", closed->error_code);
	json_end_object(json);
}

static void add_closed(struct table *table, const struct lease_closed *closed)
{
	char over[TIME_SIZE];

	table_add(table, STYLE_PLAIN, closed->run_id);
	if (closed->attempt_no > 0) {
		duration_format(closed->closed_at - closed->lease_expires_at, over);
		table_addf(table, STYLE_PLAIN, "%" PRId32, closed->attempt_no);
		table_add(table, STYLE_PLAIN, closed->owner);
		table_add(table, STYLE_PLAIN, over);
		table_add(table, STYLE_BAD, lease_outcome_name(LEASE_OUTCOME_LEASE_EXPIRED));
	} else {
		for (int i = 0; i < 4; i++)
			table_add(table, STYLE_PLAIN, NULL);
	}
	table_addf(table, closed->moved ? STYLE_WARNING : STYLE_PLAIN, "%s%s",
		   closed->moved ? "" : "stays ", lease_run_status_name(closed->status));
	table_add(table, STYLE_PLAIN, closed->error_code);
}

static void take_closed(void *arg, const struct lease_closed *closed)
{
	struct preview *preview = arg;

	preview->closed += closed->attempt_no > 0;
	preview->moved += closed->moved;
	if (preview->output->json)
		write_closed(&preview->json, closed);
	else
		add_closed(preview->table, closed);
}

static int read_policy(const struct context *context, struct lease_sweep_options *options)
{
	const struct option_value *values = context->values;
	int policy;
	int r = connection_policy(&context->source, &options->policy, &options->max_lease_losses);

	if (r)
		return r;
	if (values[SWEEP_POLICY].given) {
		policy = lease_policy_parse(values[SWEEP_POLICY].text);
		if (policy < 0)
			return fail(EX_USAGE, "--policy: '%s' is none: record, fail or requeue",
				    values[SWEEP_POLICY].text);
		options->policy = (enum lease_policy)policy;
	}
	if (values[SWEEP_LOSSES].given) {
		if (options->policy != LEASE_POLICY_REQUEUE)
			return fail(EX_USAGE, "--max-lease-losses needs the policy requeue");
		if (values[SWEEP_LOSSES].number > 1000000)
			return fail(EX_USAGE, "--max-lease-losses: at most 1000000");
		options->max_lease_losses = (int)values[SWEEP_LOSSES].number;
	}
	return 0;
}

static void begin_preview(struct preview *preview, const struct output *output,
			  const struct lease_sweep_options *options)
{
	static const struct table_column columns[] = {
		{ "run", false, true },
		{ "attempt", true, false },
		{ "owner", false, true },
		{ "over for", true, false },
		{ "attempt becomes", false, false },
		{ "run becomes", false, false },
		{ "error", false, true },
	};

	*preview = (struct preview){ .output = output };
	if (!output->json) {
		preview->table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));
		return;
	}
	json_init(&preview->json, output->file);
	json_begin_object(&preview->json, NULL);
	json_text(&preview->json, "policy", lease_policy_name(options->policy));
	json_number(&preview->json, "max_lease_losses", options->max_lease_losses);
	json_begin_array(&preview->json, "runs");
}

static void end_preview(struct preview *preview, const struct lease_sweep_options *options,
			int64_t n)
{
	if (preview->output->json) {
		json_end_array(&preview->json);
		json_end_object(&preview->json);
		return;
	}
	if (n > 0) {
		table_print(preview->table);
		putc('\n', preview->output->file);
	}
	fprintf(preview->output->file,
		"policy %s: %" PRId64 " attempts would be closed, %" PRId64 " runs moved\n",
		lease_policy_name(options->policy), preview->closed, preview->moved);
}

static int run_sweep(struct context *context)
{
	struct lease_sweep_options options;
	struct preview preview;
	struct lease_error error;
	int64_t n = 0;
	PGconn *conn;
	int r;

	if (!context->values[SWEEP_DRY_RUN].given)
		return fail(EX_USAGE,
			    "sweep: only with --dry-run; 'lease-reconciler --once' sweeps");
	lease_sweep_options_init(&options);
	r = read_policy(context, &options);
	if (r == 0)
		r = connection_open(&context->source, CONNECTION_READ, &conn);
	if (r)
		return r;
	begin_preview(&preview, &context->output, &options);
	r = lease_preview_sweep(
		conn, &options,
		&(struct lease_sweep_callbacks){ .closed = take_closed, .arg = &preview }, &n,
		&error);
	if (r < 0)
		r = fail_with_error("cannot look at what is to be swept", &error);
	else
		end_preview(&preview, &options, n);
	table_free(preview.table);
	PQfinish(conn);
	return r;
}

const struct command command_sweep = {
	.name = "sweep",
	.summary = "with --dry-run: what a sweep would close and move now",
	.description =
		"Says which attempts a reconciler would close at this moment and what each run would\n"
		"become, by the policy. Locks nothing and changes nothing.",
	.options = sweep_options,
	.n_options = sizeof(sweep_options) / sizeof(sweep_options[0]),
	.run = run_sweep,
};
