/*
 * The packages' side of the comparison: makes a package's schema, or runs its own rescue once.
 *
 *	node rescue.js graphile_worker|pg_boss|orm_node make|rescue DATABASE [STATEMENT…]
 *
 * PGHOST, PGPORT and PGUSER name the server. `rescue` connects, prints {"ready":true}, waits for
 * SIGUSR2, and prints how long the package's own code took: {"seconds":1.234}. No statement of a
 * rescue stands here.
 */
'use strict';

const [peer, action, database, ...statements] = process.argv.slice(2);
const connection = { host: process.env.PGHOST, port: +process.env.PGPORT,
	user: process.env.PGUSER, database };

const peers = {
	/* The function that each of its worker pools calls every 8 to 10 minutes. */
	async graphile_worker() {
		const { Pool } = require('pg');
		const { runMigrations, Logger } = require('graphile-worker');
		const { processSharedOptions, makeEnhancedWithPgClient } = require('graphile-worker/dist/lib');
		const { makeWithPgClientFromPool } = require('graphile-worker/dist/helpers');
		const { resetLockedAt } = require('graphile-worker/dist/sql/resetLockedAt');
		const pgPool = new Pool({ ...connection, max: 1 });
		const options = { pgPool, logger: new Logger(() => () => {}), noHandleSignals: true };

		return {
			make: () => runMigrations(options),
			connect: () => pgPool.query('SELECT 1'),
			rescue: () => resetLockedAt(processSharedOptions(options),
				makeEnhancedWithPgClient(makeWithPgClientFromPool(pgPool))),
			end: () => pgPool.end(),
		};
	},

	/* `expire` is the rescuing third of its maintain(), which also archives and drops ended jobs. */
	async pg_boss() {
		const PgBoss = require('pg-boss');
		const boss = new PgBoss({ ...connection, max: 1, supervise: false, schedule: false,
			migrate: action === 'make' });

		boss.on('error', fail);
		return {
			make: async () => {
				await boss.start();
				await boss.createQueue('work');
			},
			connect: () => boss.start(),
			rescue: () => boss.expire(),
			end: () => boss.stop({ graceful: false }),
		};
	},

	/* The statements of emulated.c, by the client library that the others use. */
	async orm_node() {
		const { Client } = require('pg');
		const client = new Client(connection);
		const [lost, close, attempt, move] = statements.map((text, i) =>
			(...values) => client.query({ name: `orm${i}`, text, values }));

		return {
			connect: () => client.connect(),
			rescue: async () => {
				await client.query('BEGIN');
				for (const run of (await lost()).rows) {
					await close(run.run_id);
					await attempt(run.run_id);
					await move(run.run_id);
				}
				await client.query('COMMIT');
			},
			end: () => client.end(),
		};
	},
};

function fail(error) {
	process.stderr.write(`rescue.js: ${peer} ${action}: ${error.stack || error}\n`);
	process.exit(70);
}

function signalled() {
	return new Promise((resolve) => {
		const awake = setInterval(() => {}, 1000);
		process.once('SIGUSR2', () => {
			clearInterval(awake);
			resolve();
		});
	});
}

function say(what) {
	process.stdout.write(JSON.stringify(what) + '\n');
}

async function main() {
	const it = await peers[peer]();

	if (action === 'make') {
		await it.make();
	} else {
		await it.connect();
		const go = signalled();
		say({ ready: true });
		await go;
		const began = process.hrtime.bigint();
		await it.rescue();
		say({ seconds: Number(process.hrtime.bigint() - began) / 1e9 });
	}
	await it.end();
}

main().catch(fail);
