// The judge of the process rig, given histories, jobs and a ledger that were made by hand: a sound world has no violation, and a world with
// one fault has the sentence of that fault and no other.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { type Engine, type JobInfo, open } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { type Books, booksOf, type Entry } from "../../src/torture/books.ts";
import { type Line, readHistories, type Told } from "../../src/torture/history.ts";
import { flaky, hog, JOBS, poison, stepped, transfer } from "../../src/torture/jobs.ts";
import { judge, type Judgement } from "../../src/torture/oracle.ts";

/** Everything that the judge reads. */
interface World {
  readonly jobs: Map<string, JobInfo>;
  /** Rows that the list does not show. */
  hidden: number;
  rows: Entry[];
  told: Told[];
}

const PAGE = 2;

const jobOf = (
  id: string,
  kind: string,
  state: JobInfo["state"],
  error: JobInfo["error"] = null,
): [string, JobInfo] => [id, { id, kind, state, error } as JobInfo];
const ask = (id: string, kind: string, amount?: number): Told => ({
  what: "ask",
  id,
  kind,
  ...(amount !== undefined && { amount }),
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
    jobs: new Map([
      jobOf("plain", transfer.name, "succeeded"),
      jobOf("retaken", transfer.name, "succeeded"),
      jobOf("unheard", transfer.name, "succeeded"),
      jobOf("steps", stepped.name, "succeeded"),
      jobOf("flaky", flaky.name, "succeeded"),
      jobOf("poison", poison.name, "quarantined"),
      jobOf("hog", hog.name, "quarantined"),
    ]),
    rows: [
      { job: "plain", amount: 5, fence: "1.1" },
      { job: "retaken", amount: 7, fence: "2.2" },
      { job: "unheard", amount: 9, fence: "1.1" },
    ],
    told: [
      ask("plain", transfer.name, 5),
      ack("plain"),
      // The second order of a dedupe key is answered with the job of the first.
      ask("twin", transfer.name, 6),
      ack("twin", "plain"),
      // Asked and never answered: one is there, one is not.
      ask("unheard", transfer.name, 9),
      ask("nowhere", transfer.name, 1),
      { what: "refused", id: "nowhere", code: "STORE_DOWN" },
      start("plain", "transfer", "1.1"),
      committed("plain", "1.1"),
      // Its first owner was taken for dead, went on, and was refused.
      ask("retaken", transfer.name, 7),
      ack("retaken"),
      start("retaken", "transfer", "1.1"),
      start("retaken", "transfer", "2.2"),
      committed("retaken", "2.2"),
      { what: "rejected", id: "retaken", write: "commit" },
      // Committed and killed before it could say so.
      start("unheard", "transfer", "1.1"),
      // Kept by the second attempt: what the first, a zombie, still does is in vain and allowed.
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
      ask("flaky", flaky.name),
      start("flaky", "flaky", "1.1"),
      ask("poison", poison.name),
      ask("hog", hog.name),
    ],
  };
}

function judged({ jobs, hidden, rows, told }: World): Promise<Judgement> {
  const all = [...jobs.values()];
  const list = async ({ after = "0" }: { readonly after?: string } = {}): Promise<unknown> => {
    const from = Number(after);
    return {
      jobs: all.slice(from, from + PAGE),
      next: from + PAGE < all.length ? String(from + PAGE) : null,
    };
  };
  const lines = told.map((one, at): Line => ({ at, pid: 1, ...one }));
  const books = { entries: async () => rows, jobCount: async () => jobs.size + hidden } as unknown as Books;
  return judge({ list } as unknown as Engine, books, lines);
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
    fault: ({ told }) => void told.push(ack("twin", "vanished"), ack("vanished")),
    says: ["job vanished was acknowledged and is not in the store"],
    counts: { lost: 1 },
  },
  {
    what: "a job that waits for ever",
    fault: ({ jobs }) => void jobs.set(...jobOf("flaky", flaky.name, "queued")),
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
    fault: ({ jobs }) => void jobs.set(...jobOf("unheard", transfer.name, "dead", { name: "Error", message: "no" })),
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
    what: "an attempt that was told it had committed, while the row is another's",
    fault: ({ told }) => void told.push(committed("retaken", "1.1")),
    says: ["attempt 1.1 of job retaken was told that it had committed, and its row is not there"],
  },
  {
    what: "two starts under one fence",
    fault: ({ told }) => void told.push(start("retaken", "transfer", "2.2")),
    says: ["job retaken was started twice under one fence: 1.1, 2.2, 2.2"],
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
    says: ["job phantom is in the store and nobody asked for it"],
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
    fault: ({ jobs }) => void jobs.set(...jobOf("flaky", flaky.name, "quarantined")),
    says: [`job flaky (${flaky.name}) is quarantined, not succeeded`],
    counts: { quarantined: 3 },
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
  poison: 2,
  staleWritesRejected: 1,
};

describe("the judge of the process rig", () => {
  it("has nothing to say of a world in which every promise holds, whatever was never answered", async () => {
    assert.deepEqual(await judged(soundWorld()), { ...SOUND, violations: [] });
  });

  for (const { what, fault, says, counts } of FAULTS)
    it(`notices ${what}`, async () => {
      const world = soundWorld();
      fault(world);
      assert.deepEqual(await judged(world), { ...SOUND, ...counts, violations: says });
    });

  it("reads the jobs and the ledger of a real store", async () => {
    const engine = await open("sqlite::memory:", { jobs: JOBS, logger: false });
    await using _ = engine;
    const books = await booksOf(null);
    await books.create(engine);
    await engine.enqueue(transfer, { amount: 3, workMs: 0 }, { id: "paid" });
    const enough = new AbortController();
    const off = engine.on("job.succeeded", () => enough.abort());
    await engine.work({ signal: enough.signal });
    off();
    const told = [ask("paid", transfer.name, 3), ack("paid"), start("paid", "transfer", "1.1")];
    const lines = told.map((one): Line => ({ at: 1, pid: 1, ...one }));
    assert.deepEqual((await judge(engine, books, lines)).violations, []);
    await engine.transaction(sqlite, (tx) => void tx.run("INSERT INTO torture_ledger VALUES ('paid', 3, '0.0')"));
    assert.deepEqual((await judge(engine, books, lines)).violations, ["job paid has 2 rows in the ledger"]);
  });
});

describe("the histories of the processes", () => {
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
