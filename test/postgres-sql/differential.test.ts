// Core and SQL decide the same: several hundred generated jobs of dead and of silent workers and jobs past their deadlines. Only
// the random part of a backoff may differ, and it stays within what core could have said.
import assert from "node:assert/strict";
import { test } from "node:test";
import { isSuspect } from "../../src/job/isolation.ts";
import { backoffMs, JOB_STATES, type KindSettings } from "../../src/job/job.ts";
import { afterChange, type Change } from "../../src/job/transitions.ts";
import { decideCrash, decideOverdue } from "../../src/recovery/recover.ts";
import type { HeldJob } from "../../src/stores/port.ts";
import { LANE, NEVER_DUE, OUTCOME, STATE, toStored } from "../../src/stores/rows.ts";
import { type Fixture, fixture } from "./fixture.ts";

const SEED = Number(process.env["OUTLIVE_SEED"] ?? 1);
const CAUSES = ["gone", "silent", "timeOut"] as const;
const WORKERS = 480;

interface Case {
  readonly job: HeldJob;
  readonly worker: number;
  readonly cause: "gone" | "silent" | "timeOut";
  readonly cancelRequested: boolean;
}

test(`core and SQL decide the same about every generated job (OUTLIVE_SEED=${SEED})`, async (t) => {
  const store = await fixture(t);
  const cases = generate(dice(SEED));
  await write(store, cases);
  const reclaimed = await store.sql<{ job_id: string; decision: string; attempts: number }>(
    "SELECT * FROM outlive.reclaim_stale_jobs(10000)",
  );
  assert.equal(reclaimed.length, cases.length);
  const rows = new Map((await read(store)).map((row) => [row.id, row]));
  const held = Map.groupBy(cases, ({ worker }) => worker);
  const told = new Map(reclaimed.map((row) => [row.job_id, row]));
  const seen = new Set<string>();
  for (const { job, worker, cause, cancelRequested } of cases) {
    const row = rows.get(job.id)!;
    const delayMs = row.delay === null || row.waits ? 0 : Number(row.delay);
    const [least, most] = expected(job, cause, cancelRequested, held.get(worker)!);
    const counters = afterChange(job.counters, least.change);
    const waits = least.change.waitsForResolution === true;
    const isDelayed = least.change.to === "queued" && (delayMs > 0 || waits);
    const lane = isDelayed ? LANE.delayed : isSuspect(counters) ? LANE.suspect : LANE.open;
    const attempts = counters.errors + counters.crashes + counters.timeouts + counters.losses;
    assert.deepEqual(
      { ...row, delay: undefined, told: told.get(job.id)!.decision, attempts: told.get(job.id)!.attempts },
      {
        ...counters,
        id: job.id,
        state: STATE[least.change.to],
        outcome: OUTCOME[least.change.outcome!],
        lane,
        together: least.change.together ?? 0,
        waits,
        event: least.change.name,
        delay: undefined,
        told: toStored(least.decision),
        attempts,
      },
      JSON.stringify({ job, cause, seed: SEED }),
    );
    assert.ok(
      delayMs >= least.change.delayMs && delayMs <= most.change.delayMs,
      `${delayMs} ms is between ${least.change.delayMs} and ${most.change.delayMs}`,
    );
    seen.add(`${cause} ${least.decision}${waits ? " waits" : delayMs > 0 ? " later" : ""}`);
  }
  // What was generated reached every decision.
  assert.deepEqual([...seen].sort(), [
    "gone cancel",
    "gone fail",
    "gone lost",
    "gone lost waits",
    "gone requeue",
    "silent cancel",
    "silent fail",
    "silent lost",
    "silent lost waits",
    "silent requeue",
    "timeOut cancel",
    "timeOut fail",
    "timeOut retry later",
  ]);
});

test(`core and SQL compute the same backoff to the millisecond (OUTLIVE_SEED=${SEED})`, async (t) => {
  const store = await fixture(t);
  const random = dice(SEED);
  const asked = Array.from({ length: 400 }, (_, i) => ({
    ...kind(random, `k${i}`).backoff,
    failures: Math.floor(random() * 60),
    chance: random(),
  }));
  const rows = await store.sql<{ ms: string }>(
    `SELECT outlive.backoff_ms(jsonb_populate_record(NULL::outlive.kinds, a.value), (a.value->>'failures')::integer, (a.value->>'chance')::float8) AS ms
     FROM jsonb_array_elements($1) WITH ORDINALITY a ORDER BY a.ordinality`,
    [
      JSON.stringify(
        asked.map(({ type, baseMs, maxMs, jitter, ...rest }) => ({
          backoff_type: type,
          backoff_base_ms: baseMs,
          backoff_max_ms: maxMs,
          backoff_jitter: jitter,
          ...rest,
        })),
      ),
    ],
  );
  assert.deepEqual(
    rows.map(({ ms }) => Number(ms)),
    asked.map(({ failures, chance, ...backoff }) => backoffMs(backoff, failures, chance)),
  );
});

/** What core says with the shortest and with the longest backoff. */
function expected(
  job: HeldJob,
  cause: Case["cause"],
  cancelRequested: boolean,
  held: readonly Case[],
): [least: Verdict, most: Verdict] {
  const written = (change: Change): Change => (cancelRequested ? (change.ifCancelled ?? change) : change);
  const at = (random: number): Verdict => {
    if (cause !== "timeOut") {
      // SQL judges no death: to it, every worker is lost. Core counts a death that is proved later (reclaim.test.ts).
      const suspectsAtDeath = held.filter((one) => isSuspect(one.job.counters)).length;
      const { decision, change } = decideCrash(job, { suspectsAtDeath, how: "silent" });
      return { decision: cancelRequested ? "cancel" : decision, change: written(change) };
    }
    const change = written(decideOverdue(job, random));
    const decision = { queued: "retry", dead: "fail", cancelled: "cancel" }[change.to as "queued"];
    return { change, decision };
  };
  return [at(0), at(1)];
}

interface Verdict {
  readonly change: Change;
  readonly decision: string;
}

function generate(random: () => number): Case[] {
  return Array.from({ length: WORKERS }, (_, worker) => {
    const cause = CAUSES[worker % CAUSES.length]!;
    const jobs = random() < 0.5 ? 1 : 2 + Math.floor(random() * 3);
    return Array.from({ length: jobs }, (__, place): Case => ({
      cause,
      worker,
      cancelRequested: random() < 0.1,
      job: {
        id: `job-${worker}-${place}`,
        state: "running",
        row: worker,
        worker: `w${worker}`,
        epoch: 1,
        fence: 1,
        deadlineAt: null,
        lastStep: null,
        kind: kind(random, `kind-${worker}-${place}`),
        deathsElsewhere: 0,
        counters: {
          errors: upTo(random, 12),
          crashes: upTo(random, 4),
          blamed: upTo(random, 4),
          timeouts: upTo(random, 12),
          interruptions: upTo(random, 3),
          losses: 0,
        },
      },
    }));
  }).flat();
}

function kind(random: () => number, name: string): KindSettings {
  const baseMs = 10 + upTo(random, 5_000);
  return {
    name,
    timeoutMs: 1_000 + upTo(random, 100_000),
    maxRuntimeMs: null,
    graceMs: upTo(random, 5_000),
    limits: { errors: 1 + upTo(random, 10), timeouts: 1 + upTo(random, 14), crashes: 1 + upTo(random, 5) },
    backoff: {
      type: random() < 0.5 ? "linear" : "exponential",
      baseMs,
      maxMs: baseMs + upTo(random, 3_600_000),
      jitter: [0, 0.5, 0.9, random()][upTo(random, 3)]!,
    },
    onCrash: (["retry", "retry", "retry", "requeue", "fail"] as const)[upTo(random, 4)]!,
  };
}

/** The deaths of the first third are proved, the second is silent for longer than its lease; the jobs of the others are past deadline, grace and margin. */
async function write(store: Fixture, cases: readonly Case[]): Promise<void> {
  for (const worker of new Set(cases.map((one) => one.worker))) await store.worker(`w${worker}`);
  await store.sql(
    `INSERT INTO outlive.kinds (name, timeout_ms, grace_ms, max_errors, max_timeouts, max_crashes, backoff_type, backoff_base_ms, backoff_max_ms, backoff_jitter, on_crash)
     SELECT k->>'name', (k->>'timeoutMs')::bigint, (k->>'graceMs')::bigint, (k->'limits'->>'errors')::integer, (k->'limits'->>'timeouts')::integer,
       (k->'limits'->>'crashes')::integer, k->'backoff'->>'type', (k->'backoff'->>'baseMs')::bigint, (k->'backoff'->>'maxMs')::bigint,
       (k->'backoff'->>'jitter')::float8, replace(k->>'onCrash', 'requeue', '${toStored("requeue")}')
     FROM jsonb_array_elements($1) c, LATERAL (SELECT c->'job'->'kind' AS k) AS one`,
    [JSON.stringify(cases)],
  );
  await store.sql(
    `INSERT INTO outlive.jobs (id, kind, priority, input, created_at, state, worker, epoch, fence, started_at, deadline_at,
       errors, crashes, blamed, timeouts, interruptions, losses, cancel_requested)
     SELECT c->'job'->>'id', k.id, 0, 'null', outlive.now_ms(), 1, f.seq, 1, 1, outlive.now_ms(), outlive.now_ms() + k.timeout_ms,
       (n->>'errors')::integer, (n->>'crashes')::integer, (n->>'blamed')::integer, (n->>'timeouts')::integer, (n->>'interruptions')::integer,
       (n->>'losses')::integer, (c->>'cancelRequested')::boolean
     FROM jsonb_array_elements($1) c JOIN outlive.kinds k ON k.name = c->'job'->'kind'->>'name' JOIN outlive.fleet f ON f.id = 'w' || (c->>'worker'),
       LATERAL (SELECT c->'job'->'counters' AS n) AS one`,
    [JSON.stringify(cases)],
  );
  await store.pass(200_000);
  await store.sql("UPDATE outlive.fleet SET heartbeat_at = outlive.now_ms() WHERE substr(id, 2)::integer % 3 = 2");
  await store.sql("UPDATE outlive.fleet SET state = 'gone' WHERE substr(id, 2)::integer % 3 = 0");
}

interface Row {
  readonly id: string;
  readonly delay: string | null;
  /** For it to be known what happened to its workers. */
  readonly waits: boolean;
}

function read(store: Fixture): Promise<Row[]> {
  return store.sql<Row>(
    `SELECT j.id, j.state, j.lane, j.outcome, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.together, j.run_at - outlive.now_ms() AS delay,
       coalesce(j.run_at = ${NEVER_DUE}, false) AS waits,
       (SELECT h.event FROM outlive.history h WHERE h.job = j.seq) AS event FROM outlive.jobs j`,
  );
}

function upTo(random: () => number, most: number): number {
  return Math.floor(random() * (most + 1));
}

/** A generator with one seed: mulberry32. */
function dice(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

assert.equal(JOB_STATES.length, 6, "a new state needs its decision in SQL");
