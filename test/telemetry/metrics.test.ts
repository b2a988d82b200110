// Metrics of an engine in a registry of the user's own: from what happens, and from what is in the store.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Registry } from "prom-client";
import { batch, job, open, TerminalError } from "../../src/index.ts";
import { aggregatedText, attachMetrics, lasting } from "../../src/metrics.ts";
import type { WorkerRow } from "../../src/stores/liveness.ts";
import { type MeasuredStore, storeMetrics } from "../../src/telemetry/metrics.ts";
import { slow } from "../support/jobs.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";
import { aWorkerRow } from "../support/samples.ts";

const good = job<{ n: number }>("good").handle(() => {});
const bad = job<{ n: number }>("bad", { retry: { attempts: 2, backoff: { base: "1ms", max: "1ms" } } }).handle(() => {
  throw new Error("no");
});
const late = job<{ n: number }>("late", { timeout: "20ms", grace: "10ms", retry: { timeouts: 1 } }).handle(
  () => new Promise(() => setTimeout(() => {}, 1).unref()),
);

async function samples(registry: Registry): Promise<Map<string, number>> {
  const lines = (await registry.metrics()).split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return new Map(
    lines.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]),
  );
}

const rows = batch("rows", { block: 2, retry: { attempts: 1 } });
rows.handle(({ input }) => {
  if (input === "bad") throw new TerminalError("no");
});

test("batches are counted: those that have not ended with their rows and their age, and ends with what rows came to", async () => {
  await using engine = await open("sqlite::memory:", { jobs: [rows], logger: false });
  const registry = new Registry();
  attachMetrics(engine, { registry });
  await engine.submit(rows, ["good", "bad", "good"]);
  await engine.openBatch(rows);
  const before = await samples(registry);
  assert.equal(before.get('outlive_batches{kind="rows",state="sealed"}'), 1);
  assert.equal(before.get('outlive_batches{kind="rows",state="open"}'), 1);
  assert.equal(before.get('outlive_batch_rows_left{kind="rows"}'), 3);
  assert.ok(before.get('outlive_oldest_batch_seconds{kind="rows"}')! >= 0);
  const ended = new Promise((resolve) => engine.on("batch.ended", resolve));
  const worker = await engine.start();
  await ended;
  await worker.stop();
  const after = await samples(registry);
  const expected = {
    'outlive_batches{kind="rows",state="sealed"}': 0,
    'outlive_batches_ended_total{kind="rows",state="completed"}': 1,
    'outlive_batch_rows_total{kind="rows",outcome="succeeded"}': 2,
    'outlive_batch_rows_total{kind="rows",outcome="failed"}': 1,
    'outlive_batch_rows_left{kind="rows"}': 0,
  };
  for (const [name, value] of Object.entries(expected)) assert.equal(after.get(name), value, name);
});

test("what happens is counted: claims, attempts, errors, retries, timeouts, deaths of jobs", async () => {
  await using engine = await open("sqlite::memory:", { jobs: [good, bad, late], logger: false });
  const registry = new Registry();
  attachMetrics(engine, { registry });
  await engine.enqueueMany(good, [{ n: 1 }, { n: 2 }, { n: 3 }]);
  const enqueued = [
    await engine.enqueue(bad, { n: 1 }),
    await engine.enqueue(bad, { n: 2 }),
    await engine.enqueue(late, { n: 1 }),
  ];
  const worker = await engine.start();
  for (const { id } of enqueued) await untilState(engine, id, "dead");
  await worker.stop();
  const told = await samples(registry);
  const expected = {
    'outlive_claims_total{kind="good"}': 3,
    'outlive_claims_total{kind="bad"}': 4,
    'outlive_attempts_total{kind="good",outcome="succeeded"}': 3,
    'outlive_attempts_total{kind="bad",outcome="failed"}': 4,
    'outlive_attempt_duration_seconds_count{kind="good"}': 3,
    'outlive_errors_total{kind="bad"}': 4,
    'outlive_retries_total{kind="bad"}': 2,
    'outlive_dead_total{kind="bad"}': 2,
    'outlive_timeouts_total{kind="late"}': 1,
    'outlive_dead_total{kind="late"}': 1,
    'outlive_jobs{kind="good",state="succeeded"}': 3,
    'outlive_jobs{kind="bad",state="dead"}': 2,
    'outlive_jobs{kind="bad",state="ready"}': 0,
    'outlive_oldest_ready_seconds{kind="good"}': 0,
    'outlive_workers{state="live"}': 0,
    outlive_store_up: 1,
  };
  for (const [name, value] of Object.entries(expected)) assert.equal(told.get(name), value, name);
  assert.ok(told.get("outlive_group_commits_total")! >= 3);
  assert.ok(told.get("outlive_group_commit_writes_total")! >= told.get("outlive_group_commits_total")!);
});

test("held jobs are counted by kind, and a wake that no worker acts on grows old", async (t) => {
  const place = new Place(t);
  const waiting = job<null>("waiting").handle((_, run) => run.waitForSignal("go"));
  const stuck = job<null>("stuck", { grace: "0ms", limits: [{ name: "one", running: 1 }] });
  stuck.handle((_, run) => new Promise<void>((resolve) => run.signal.addEventListener("abort", () => resolve())));
  const engine = await place.engine({ jobs: [waiting, stuck] });
  const registry = new Registry();
  attachMetrics(engine, { registry, only: "store" });
  for (const id of ["a", "b", "c"]) await engine.enqueue(stuck, null, { id });
  const { id } = await engine.enqueue(waiting, null);
  const worker = await engine.start();
  await untilState(engine, "a", "running");
  await untilTrue(
    () => engine.get(id),
    (details) => details?.waitsAt === "run.signal(go)#1",
    "it waits",
  );
  await untilTrue(
    () => samples(registry),
    (told) => told.get("outlive_oldest_wake_seconds") === 0,
    "every wake was acted on",
  );
  assert.equal((await samples(registry)).get('outlive_jobs{kind="stuck",state="held"}'), 2);
  await worker.stop({ grace: "0ms" });
  await engine.signal(id, "go");
  // The stopped worker's job left a wake of its key that is older than the signal, so each age is waited for.
  const told = await untilTrue(
    () => samples(registry),
    (now) => now.get("outlive_oldest_wake_seconds")! > 0 && now.get("outlive_oldest_signal_seconds")! > 0,
    "no worker acts on the wake, and no attempt reads the signal",
  );
  assert.ok(told.get("outlive_oldest_wake_seconds")! < 60);
  assert.ok(told.get("outlive_oldest_signal_seconds")! < 60);
  const { detail } = await engine.operator.storeHealth();
  assert.ok(Number(detail["wakes"]) >= 1);
});

test("FR-023 FR-024 NFR-008 AC-015 a death and its recovery are counted and timed by the process that recovers", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const registry = new Registry();
  attachMetrics(engine, { registry });
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const victim = place.child({ heartbeat: {} });
  await victim.untilFact("started", { id });
  assert.equal((await samples(registry)).get('outlive_jobs{kind="slow",state="running"}'), 1);
  const { worker } = (await engine.get(id))!;
  victim.kill();
  await victim.exited;
  await engine.operator.noteDeath(worker!, "killed by SIGKILL");
  await engine.operator.recover();
  const between = await samples(registry);
  assert.equal(between.get('outlive_crashes_total{kind="slow"}'), 1);
  assert.equal(between.get('outlive_incidents_total{how="gone"}'), 1);
  assert.equal(between.get("outlive_recoveries_total"), 1);
  assert.equal(between.get("outlive_time_to_detect_seconds_count"), 1);
  assert.equal(between.get("outlive_time_to_resume_seconds_count"), 0, "it does not run again yet");
  const heir = place.child({ heartbeat: {} });
  await heir.untilFact("started", { id, attempt: 2 });
  const after = await samples(registry);
  assert.equal(after.get("outlive_time_to_resume_seconds_count"), 1);
  assert.equal(after.get("outlive_time_to_detect_seconds_count"), 1, "each death is counted once");
  assert.ok(after.get("outlive_wal_bytes")! > 0);
  assert.ok(after.get("outlive_database_bytes")! > 0);
  assert.equal((await samples(registry)).get("outlive_time_to_resume_seconds_count"), 1);
});

test("jobs are orphans while their worker is silent or finished; finished workers count for nothing else", async () => {
  const registry = new Registry();
  const now = Date.now();
  let silent: readonly WorkerRow[] = [];
  const asked: (string | undefined)[] = [];
  const store: MeasuredStore = {
    operator: { storeHealth: async () => ({ ok: true, summary: ["a store"], detail: {} }) },
    counts: async () => [],
    workers: async ({ which } = {}) => {
      asked.push(which);
      return which === "leftBehind"
        ? [aWorkerRow({ id: "over", state: "gone", heldCount: 1, heartbeatAt: now - 90_000 })]
        : [
            aWorkerRow({ id: "well", state: "live", heldCount: 2, heartbeatAt: now - 5_000, leaseMs: 30_000 }),
            ...silent,
          ];
    },
    incidents: async () => [],
    report: async () => null,
  };
  storeMetrics(store, registry, now);
  const within = (told: Map<string, number>, name: string, seconds: number): void => {
    const value = told.get(name)!;
    assert.ok(value >= seconds && value < seconds + 60, `${name}: ${value}`);
  };
  const told = await samples(registry);
  within(told, "outlive_orphan_seconds", 90);
  within(told, "outlive_heartbeat_age_seconds", 5);
  assert.equal(told.get('outlive_workers{state="live"}'), 1);
  silent = [aWorkerRow({ id: "silent", state: "live", heldCount: 1, heartbeatAt: now - 300_000, leaseMs: 30_000 })];
  within(await samples(registry), "outlive_orphan_seconds", 300);
  // Finished workers may be thousands: a scrape asks for the few that still hold something.
  assert.deepEqual(asked, [undefined, "leftBehind", undefined, "leftBehind"]);
});

test("a store that can't be read is reported, and does not fail the scrape", async () => {
  const engine = await open("sqlite::memory:", { jobs: [good], logger: false });
  const registry = new Registry();
  attachMetrics(engine, { registry });
  await engine.close();
  const told = await samples(registry);
  assert.equal(told.get("outlive_store_up"), 0);
  assert.equal(told.get('outlive_jobs{kind="good",state="ready"}'), undefined);
});

test("detaching takes the metrics out of the registry and listens no more", async () => {
  await using engine = await open("sqlite::memory:", { jobs: [good], logger: false });
  const registry = new Registry();
  const detach = attachMetrics(engine, { registry });
  detach();
  assert.deepEqual(registry.getMetricsAsArray(), []);
  attachMetrics(engine, { registry });
});

test("several processes are one: counters are summed, what the store says is not, and the dead stay in the sums", async () => {
  await using engine = await open("sqlite::memory:", { jobs: [good], logger: false });
  const registry = new Registry();
  attachMetrics(engine, { registry });
  await engine.enqueue(good, { n: 1 });
  await engine.runUntilIdle();
  const snapshot = await registry.getMetricsAsJSON();
  const remains = await lasting([snapshot, snapshot]);
  const text = await aggregatedText([snapshot, remains, snapshot]);
  assert.match(text, /^outlive_claims_total\{kind="good"\} 4$/m);
  assert.match(text, /^outlive_attempt_duration_seconds_count\{kind="good"\} 4$/m);
  assert.match(text, /^outlive_jobs\{kind="good",state="succeeded"\} 1$/m);
  assert.match(text, /^outlive_store_up 1$/m);
});

test("the table in docs/telemetry.md, the alerts and the dashboard name the metrics that there are", async () => {
  await using engine = await open("sqlite::memory:", { jobs: [good], logger: false });
  const registry = new Registry();
  attachMetrics(engine, { registry });
  const names = new Set(registry.getMetricsAsArray().map(({ name }) => name));
  const read = (name: string): string => readFileSync(new URL(`../../docs/${name}`, import.meta.url), "utf8");
  const table = read("telemetry.md").match(/(?<=^\| `)outlive_\w+/gm) ?? [];
  assert.deepEqual(table.toSorted(), [...names].sort());
  const dashboard = JSON.parse(read("grafana.json")) as { panels: { targets?: { expr: string }[] }[] };
  const used = [...dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr)), read("alerts.yaml")]
    .join("\n")
    .match(/\boutlive_\w+/g)!;
  assert.ok(used.length > 20);
  const known = (name: string): boolean => names.has(name) || names.has(name.replace(/_(bucket|sum|count)$/, ""));
  assert.deepEqual(
    used.filter((name) => !known(name)),
    [],
  );
});
