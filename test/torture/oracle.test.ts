// The judge of the process rig, given histories, jobs and a ledger that were made by hand: a sound world has no violation, and a world with
// one fault has the sentence of that fault and no other.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import {
  type Engine,
  type HistoryEntry,
  type IncidentSummary,
  type JobInfo,
  open,
  type WorkerRow,
} from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { type Ledger, ledgerOf, type Entry } from "../../proof/torture/processes/ledger.ts";
import { type Line, type Ordered, readHistories, type Told } from "../../proof/torture/processes/history.ts";
import { flaky, hog, JOBS, poison, stepped, transfer } from "../../proof/torture/processes/jobs.ts";
import { judge, type Judgement } from "../../proof/torture/processes/oracle.ts";
import { orderOf, placeOrder } from "../../proof/torture/processes/order.ts";

/** Everything that the judge reads. */
interface World {
  readonly jobs: Map<string, JobInfo>;
  /** The fences of a job's attempts that did not succeed, in the order in which they ended. */
  readonly ended: Map<string, readonly string[]>;
  /** Rows that the list does not show. */
  hidden: number;
  rows: Entry[];
  /** The incidents in the history of a job. */
  readonly incidentsOf: Map<string, readonly string[]>;
  incidents: IncidentSummary[];
  workers: WorkerRow[];
  /** By one process, unless another one is named. */
  told: (Told & { readonly pid?: number; readonly since?: number })[];
}

const PAGE = 2;

const jobOf = (
  id: string,
  kind: string,
  state: JobInfo["state"],
  {
    error = null,
    fence = "1.1",
    counters = {},
  }: {
    readonly error?: JobInfo["error"];
    readonly fence?: string;
    readonly counters?: Partial<JobInfo["counters"]>;
  } = {},
): [string, JobInfo] => [id, { id, kind, state, error, counters: counted(counters), ...fenceOf(fence) } as JobInfo];
const counted = (counters: Partial<JobInfo["counters"]> = {}): JobInfo["counters"] => ({
  errors: 0,
  crashes: 0,
  blamed: 0,
  timeouts: 0,
  interruptions: 0,
  losses: 0,
  ...counters,
});
/** A worker of a process, from the moment at which it registered. */
const workerOf = (id: string, pid: number, startedAt: number): WorkerRow =>
  ({ id, pid, startedAt, host: "here" }) as WorkerRow;
const incidentOf = (id: string, worker: string, detectedAt: number): IncidentSummary =>
  ({ id, worker, detectedAt }) as IncidentSummary;
const fenceOf = (fence: string): Pick<JobInfo, "epoch" | "attempt"> => ({
  epoch: Number(fence.split(".")[0]),
  attempt: Number(fence.split(".")[1]),
});
const ask = (id: string, kind: string, ordered: Omit<Ordered, "kind"> = {}): Told => ({
  what: "ask",
  id,
  kind,
  ...ordered,
});
const ack = (id: string, got = id): Told => ({ what: "ack", id, got, created: id === got });
const start = (id: string, kind: string, fence: string): Told => ({ what: "start", id, kind, fence });
const step = (id: string, name: string, attempt: number): Told => ({ what: "step", id, name, attempt });
const kept = (id: string, name: string, attempt: number): Told => ({ what: "kept", id, name, attempt });
const committed = (id: string, fence: string): Told => ({ what: "committed", id, fence });

/** Whatever may happen in a run in which every promise holds. */
function soundWorld(): World {
  return {
    hidden: 0,
    // Of two workers that held a job, one died, for which the job was charged, and one came back.
    incidentsOf: new Map([["retaken", ["death", "loss"]]]),
    incidents: [incidentOf("death", "w1", 5_000), incidentOf("loss", "w2", 6_000)],
    workers: [workerOf("w1", 1, 0), workerOf("w2", 2, 0), workerOf("w3", 2, 6_900), workerOf("w4", 3, 6_500)],
    jobs: new Map([
      jobOf("plain", transfer.name, "succeeded"),
      jobOf("retaken", transfer.name, "succeeded", { fence: "2.3", counters: { crashes: 1 } }),
      jobOf("unheard", transfer.name, "succeeded"),
      jobOf("steps", stepped.name, "succeeded", { fence: "1.2" }),
      jobOf("flaky", flaky.name, "succeeded", { fence: "1.3" }),
      jobOf("poison", poison.name, "quarantined", { fence: "1.2" }),
      jobOf("hog", hog.name, "quarantined"),
    ]),
    ended: new Map([
      ["retaken", ["1.1", "1.2"]],
      ["steps", ["1.1"]],
      ["flaky", ["1.1", "1.2"]],
      ["poison", ["1.1", "1.2"]],
    ]),
    rows: [
      { job: "plain", amount: 5, fence: "1.1" },
      { job: "retaken", amount: 7, fence: "2.3" },
      { job: "unheard", amount: 9, fence: "1.1" },
    ],
    told: [
      ask("plain", transfer.name, { amount: 5, dedupeKey: "k" }),
      ack("plain"),
      // The second order of a dedupe key is answered with the job of the first.
      ask("twin", transfer.name, { amount: 6, dedupeKey: "k" }),
      ack("twin", "plain"),
      // Asked and never answered: one is there, one is not.
      ask("unheard", transfer.name, { amount: 9 }),
      ask("nowhere", transfer.name, { amount: 1 }),
      { what: "refused", id: "nowhere", code: "STORE_DOWN" },
      start("plain", "transfer", "1.1"),
      committed("plain", "1.1"),
      // Its first owner was taken for dead, went on, and was refused. So was its second, who was frozen between its claim and its start.
      ask("retaken", transfer.name, { amount: 7 }),
      ack("retaken"),
      start("retaken", "transfer", "1.1"),
      start("retaken", "transfer", "2.3"),
      { ...start("retaken", "transfer", "1.2"), pid: 2 },
      committed("retaken", "2.3"),
      { what: "rejected", id: "retaken", write: "commit" },
      // Committed and killed before it could say so.
      start("unheard", "transfer", "1.1"),
      // Kept by the second attempt: what the first, a zombie, still does has no effect and is allowed.
      ask("steps", stepped.name),
      ack("steps"),
      start("steps", "stepped", "1.1"),
      step("steps", "first", 1),
      kept("steps", "first", 1),
      step("steps", "second", 1),
      kept("steps", "first", 2),
      step("steps", "second", 2),
      kept("steps", "second", 2),
      step("steps", "third", 2),
      kept("steps", "third", 2),
      step("steps", "third", 1),
      // It failed once, and was killed once before it had started.
      ask("flaky", flaky.name, { failures: 2 }),
      start("flaky", "flaky", "1.1"),
      start("flaky", "flaky", "1.3"),
      ask("poison", poison.name),
      ask("hog", hog.name),
    ],
  };
}

const charged = (job: JobInfo, counters: Partial<JobInfo["counters"]>): JobInfo => ({
  ...job,
  counters: counted(counters),
});

function judged({ jobs, ended, hidden, rows, told, incidentsOf, incidents, workers }: World): Promise<Judgement> {
  const all = [...jobs.values()];
  const list = async ({ after = "0" }: { readonly after?: string } = {}): Promise<unknown> => {
    const from = Number(after);
    return {
      jobs: all.slice(from, from + PAGE),
      next: from + PAGE < all.length ? String(from + PAGE) : null,
    };
  };
  const get = async (id: string): Promise<unknown> => ({
    ...jobs.get(id),
    history: [
      // What is refused is kept, too, and ends nothing.
      { from: "running", to: "running", event: "write.rejected", incident: null, ...fenceOf("0.0") },
      ...(ended.get(id) ?? []).map((fence, at) => ({
        from: "running",
        to: "queued",
        incident: incidentsOf.get(id)?.[at] ?? null,
        ...fenceOf(fence),
      })),
    ] as HistoryEntry[],
  });
  const lines = told.map((one, at): Line => ({ at, pid: 1, since: 0, ...one }));
  const ledger = { entries: async () => rows, jobCount: async () => jobs.size + hidden } as unknown as Ledger;
  const engine = { list, get, incidents: async () => incidents, workers: async () => workers };
  return judge(engine as unknown as Engine, ledger, lines);
}

/** One fault in a world that is sound otherwise, and all that the judge has to say of it. */
const FAULTS: readonly {
  readonly what: string;
  readonly fault: (world: World) => void;
  readonly says: readonly string[];
  readonly counts?: Partial<Judgement>;
}[] = [
  {
    what: "a job that was acknowledged and is missing",
    fault: ({ told }) => void told.push(ack("vanished")),
    says: ["job vanished was acknowledged and is not in the store"],
    counts: { lost: 1 },
  },
  {
    what: "a job that another's answer named and that is missing",
    fault: ({ told }) =>
      void told.push(ask("vanished", transfer.name, { dedupeKey: "k" }), ack("twin", "vanished"), ack("vanished")),
    says: ["job vanished was acknowledged and is not in the store"],
    counts: { lost: 1 },
  },
  {
    what: "an order that was answered with a job of another key",
    fault: ({ told }) =>
      void told.push(ask("eaten", transfer.name, { amount: 3, dedupeKey: "other" }), ack("eaten", "plain")),
    says: ["job eaten was answered with job plain, which was not ordered under the same kind and dedupe key"],
    counts: { lost: 1 },
  },
  {
    what: "an order that was answered with a job of another kind",
    fault: ({ told }) => void told.push(ask("eaten", stepped.name, { dedupeKey: "k" }), ack("eaten", "plain")),
    says: ["job eaten was answered with job plain, which was not ordered under the same kind and dedupe key"],
    counts: { lost: 1 },
  },
  {
    what: "an order without a key that was answered with another job",
    fault: ({ told }) => void told.push(ask("eaten", transfer.name, { amount: 9 }), ack("eaten", "unheard")),
    says: ["job eaten was answered with job unheard, which was not ordered under the same kind and dedupe key"],
    counts: { lost: 1 },
  },
  {
    what: "an order that was answered with a job that was over",
    fault: ({ told }) =>
      void told.push(ask("eaten", transfer.name, { amount: 3, dedupeKey: "k" }), ack("eaten", "plain")),
    says: ["job eaten was answered with job plain, which had ended before it was asked for"],
    counts: { lost: 1 },
  },
  {
    what: "a job that waits for ever",
    fault: ({ jobs }) => void jobs.set(...jobOf("flaky", flaky.name, "queued", { fence: "1.3" })),
    says: ["job flaky is still queued"],
    counts: { lost: 1 },
  },
  {
    what: "a job that nobody runs although it is called running",
    fault: ({ jobs }) => void jobs.set(...jobOf("poison", poison.name, "running")),
    says: ["job poison is still running"],
    counts: { lost: 1, quarantined: 1 },
  },
  {
    what: "a second row of one transfer",
    fault: ({ rows }) => void rows.push({ job: "retaken", amount: 7, fence: "1.1" }),
    says: ["job retaken has 2 rows in the ledger"],
    counts: { committedTwice: 1 },
  },
  {
    what: "a row of a job that is not in the store",
    fault: ({ rows }) => void rows.push({ job: "nowhere", amount: 1, fence: "1.1" }),
    says: ["job nowhere has a row in the ledger and is not in the store"],
  },
  {
    what: "a row of a job that failed",
    fault: ({ jobs }) =>
      void jobs.set(...jobOf("unheard", transfer.name, "dead", { error: { name: "Error", message: "no" } })),
    says: [
      `job unheard (${transfer.name}) is dead, not succeeded: no`,
      "job unheard has a row in the ledger and is dead",
    ],
  },
  {
    what: "a success without its row",
    fault: (world) => void (world.rows = world.rows.filter(({ job }) => job !== "unheard")),
    says: ["job unheard succeeded and has no row in the ledger"],
  },
  {
    what: "an attempt whose commit resolved, while the row is another's",
    fault: ({ told }) => void told.push(committed("retaken", "1.1")),
    says: ["attempt 1.1 of job retaken had its commit resolved, and its row is not there"],
  },
  {
    what: "two starts under one fence",
    fault: ({ told }) => void told.push(start("retaken", "transfer", "2.3")),
    says: ["job retaken was started twice under one fence: 1.1, 2.3, 1.2, 2.3"],
  },
  {
    what: "a start under an older fence by the same process",
    fault: ({ told }) => void told.push(start("retaken", "transfer", "2.2")),
    says: ["job retaken was started under fence 2.2 after 2.3"],
  },
  {
    what: "a start under an older fence by a process that did not live when the newer was reported",
    fault: ({ told }) => void told.push({ ...start("retaken", "transfer", "2.2"), pid: 3, since: told.length }),
    says: ["job retaken was started under fence 2.2 after 2.3"],
  },
  {
    what: "a start under an older fence by a process that has the pid of one before it",
    fault: ({ told }) => void told.push({ ...start("retaken", "transfer", "2.2"), since: told.length }),
    says: ["job retaken was started under fence 2.2 after 2.3"],
  },
  {
    what: "a start under a fence that the store has not come to",
    fault: ({ told }) => void told.push({ ...start("steps", "stepped", "1.3"), pid: 2 }),
    says: ["job steps was started under fence 1.3 and its latest in the store is 1.2"],
  },
  {
    what: "a newer attempt under an older fence",
    fault: ({ ended }) => void ended.set("retaken", ["1.2", "1.1"]),
    says: ["the attempts of job retaken ended under fences that do not grow: 1.2, 1.1, 2.3"],
  },
  {
    what: "an older epoch with a greater number",
    fault: ({ ended }) => void ended.set("retaken", ["2.1", "1.2"]),
    says: ["the attempts of job retaken ended under fences that do not grow: 2.1, 1.2, 2.3"],
  },
  {
    what: "an attempt that ended twice",
    fault: ({ ended }) => void ended.set("poison", ["1.2", "1.2"]),
    says: ["the attempts of job poison ended under fences that do not grow: 1.2, 1.2"],
  },
  {
    what: "a success of an attempt that had failed",
    fault: ({ ended }) => void ended.set("flaky", ["1.1", "1.3"]),
    says: ["the attempts of job flaky ended under fences that do not grow: 1.1, 1.3, 1.3"],
  },
  {
    what: "a failure that was written as success",
    fault: (world) => {
      world.jobs.set(...jobOf("flaky", flaky.name, "succeeded"));
      world.ended.delete("flaky");
      world.told = world.told.filter((one) => one.what !== "start" || one.id !== "flaky" || one.fence === "1.1");
    },
    says: ["job flaky was to fail 2 times and succeeded in attempt 1"],
  },
  {
    what: "a step that was kept and run again by a later attempt",
    fault: ({ told }) => void told.push(step("steps", "first", 2)),
    says: ["step first of job steps was kept by attempt 1 and run again by attempt 2"],
  },
  {
    what: "a job that nobody has ordered",
    fault: ({ jobs, told }) => {
      jobs.set(...jobOf("phantom", flaky.name, "succeeded"));
      told.push(start("phantom", "flaky", "1.1"));
    },
    says: ["job phantom is in the store and was never ordered"],
    counts: { enqueued: 8 },
  },
  {
    what: "a row that the list does not show",
    fault: (world) => void (world.hidden = 1),
    says: ["the list has 7 jobs and the table 8"],
  },
  {
    what: "a transfer of another amount",
    fault: (world) => void (world.rows = world.rows.map((row) => (row.job === "plain" ? { ...row, amount: 6 } : row))),
    says: ["job plain was to transfer 5 and its row has 6"],
  },
  {
    what: "a success that nobody has run",
    fault: (world) => void (world.told = world.told.filter((one) => one.what !== "start" || one.id !== "flaky")),
    says: ["job flaky succeeded and was never started"],
  },
  {
    what: "a success without one of its steps",
    fault: (world) => void (world.told = world.told.filter((one) => one.what !== "kept" || one.name !== "third")),
    says: ["job steps succeeded and never kept its step third"],
  },
  {
    what: "an innocent in quarantine",
    fault: ({ jobs }) => void jobs.set(...jobOf("flaky", flaky.name, "quarantined", { fence: "1.3" })),
    says: [`job flaky (${flaky.name}) is quarantined, not succeeded`],
    counts: { quarantined: 3, quarantinedInnocents: 1 },
  },
  {
    what: "a job that was charged a crash for a worker that came back",
    fault: ({ jobs }) => void jobs.set("retaken", charged(jobs.get("retaken")!, { crashes: 2 })),
    says: [`job retaken (${transfer.name}) was charged 2 crash(es), 0 alone, and 1 process(es) died that held it`],
    counts: { blamedWithoutDeath: 1 },
  },
  {
    what: "a job that was blamed for a worker that came back",
    fault: ({ jobs }) => void jobs.set("retaken", charged(jobs.get("retaken")!, { crashes: 1, blamed: 2 })),
    says: [`job retaken (${transfer.name}) was charged 1 crash(es), 2 alone, and 1 process(es) died that held it`],
    counts: { blamedWithoutDeath: 1 },
  },
  {
    what: "a job that was charged a crash for nothing",
    fault: ({ jobs }) => void jobs.set("plain", charged(jobs.get("plain")!, { crashes: 1 })),
    says: [`job plain (${transfer.name}) was charged 1 crash(es), 0 alone, and 0 process(es) died that held it`],
    counts: { blamedWithoutDeath: 1 },
  },
  {
    what: "an attempt that expired",
    fault: ({ jobs }) => void jobs.set("plain", charged(jobs.get("plain")!, { timeouts: 1 })),
    says: [`job plain (${transfer.name}) timed out 1 time(s), long before its timeout`],
  },
  {
    what: "a commit by an attempt that did not own the job",
    fault: (world) =>
      void (world.rows = world.rows.map((row) => (row.job === "unheard" ? { ...row, fence: "1.0" } : row))),
    says: ["job unheard was owned by attempt 1.1 and committed by attempt 1.0"],
  },
  {
    what: "a job that kills its workers and is not in quarantine",
    fault: ({ jobs }) => void jobs.set(...jobOf("poison", poison.name, "dead")),
    says: [`job poison (${poison.name}) is dead, not quarantined`],
    counts: { quarantined: 1 },
  },
];

const SOUND: Omit<Judgement, "violations"> = {
  enqueued: 7,
  lost: 0,
  committedTwice: 0,
  quarantined: 2,
  quarantinedInnocents: 0,
  poison: 2,
  blamedWithoutDeath: 0,
  staleWritesRejected: 1,
};

describe("the judge of the process rig", () => {
  it("reports nothing for a world in which every promise holds, whatever was never answered", async () => {
    assert.deepEqual(await judged(soundWorld()), { ...SOUND, violations: [] });
  });

  for (const { what, fault, says, counts } of FAULTS)
    it(`notices ${what}`, async () => {
      const world = soundWorld();
      fault(world);
      assert.deepEqual(await judged(world), { ...SOUND, ...counts, violations: says });
    });

  it("lets a job be charged for a worker that stayed away for two leases", async () => {
    const world = soundWorld();
    world.jobs.set("retaken", charged(world.jobs.get("retaken")!, { crashes: 2 }));
    world.workers = [workerOf("w1", 1, 0), workerOf("w2", 2, 0), workerOf("w3", 2, 9_000)];
    assert.deepEqual(await judged(world), { ...SOUND, violations: [] });
  });

  it("reads the jobs and the ledger of a real store", async () => {
    const engine = await open("sqlite::memory:", { jobs: JOBS, logger: false });
    await using _ = engine;
    const ledger = await ledgerOf(null);
    await ledger.create(engine);
    await engine.enqueue(transfer, { amount: 3, workMs: 0 }, { id: "paid" });
    const enough = new AbortController();
    const off = engine.on("job.succeeded", () => enough.abort());
    await engine.work({ signal: enough.signal });
    off();
    const told = [ask("paid", transfer.name, { amount: 3 }), ack("paid"), start("paid", "transfer", "1.1")];
    const lines = told.map((one): Line => ({ at: 1, pid: 1, since: 0, ...one }));
    assert.deepEqual((await judge(engine, ledger, lines)).violations, []);
    await engine.transaction(sqlite, (tx) => void tx.run("INSERT INTO torture_ledger VALUES ('paid', 3, '0.0')"));
    assert.deepEqual((await judge(engine, ledger, lines)).violations, ["job paid has 2 rows in the ledger"]);
  });
});

describe("the histories of the processes", () => {
  it("have of an order all that the judge holds against what came of it, before it is placed", async () => {
    const told: Told[] = [];
    const shop = { enqueue: async () => ({ id: `the ${told.length}.`, created: true }) };
    const tell = (one: Told): void => void told.push(JSON.parse(JSON.stringify(one)) as Told);
    await placeOrder(shop, orderOf(transfer, { amount: 3, workMs: 9 }, { id: "a", dedupeKey: "k" }), tell);
    await placeOrder(shop, orderOf(flaky, { failures: 2 }, { id: "b" }), tell);
    assert.deepEqual(told, [
      { what: "ask", id: "a", kind: transfer.name, dedupeKey: "k", amount: 3 },
      { what: "ack", id: "a", got: "the 1.", created: true },
      { what: "ask", id: "b", kind: flaky.name, failures: 2 },
      { what: "ack", id: "b", got: "the 3.", created: true },
    ]);
  });

  it("are one, by time, without the line in which a process was killed", (t) => {
    const folder = mkdtempSync(join(tmpdir(), "outlive-test-histories-"));
    t.after(() => rmSync(folder, { recursive: true }));
    const line = (at: number, id: string): string => JSON.stringify({ at, pid: 1, ...ack(id) });
    writeFileSync(join(folder, "1.jsonl"), `${line(10, "a")}\n${line(30, "c")}\n${line(50, "cut").slice(0, -4)}`);
    writeFileSync(join(folder, "2.jsonl"), `${line(20, "b")}\n${line(40, "d")}\n`);
    assert.deepEqual(
      readHistories(folder).map(({ id }) => id),
      ["a", "b", "c", "d"],
    );
  });
});
