// Restores under living workers: what the judge demands of a store that was replaced by an older copy, and that the copies hold what
// their names claim.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, it, type TestContext } from "node:test";
import type { Engine, JobInfo } from "../../src/index.ts";
import type { Ledger, Entry } from "../../proof/torture/processes/ledger.ts";
import type { Line, Told } from "../../proof/torture/processes/history.ts";
import { nap, transfer } from "../../proof/torture/processes/jobs.ts";
import { copiesOfFile } from "../../proof/torture/restore/copies.ts";
import { judgeRestores, type Restore, type RestoreJudgement } from "../../proof/torture/restore/oracle.ts";

interface World {
  readonly jobs: Map<string, JobInfo>;
  rows: Entry[];
  /** Each at its instant, by a process that began at `since`. */
  readonly told: (Told & { readonly at: number; readonly since: number })[];
}

/** The copy is begun at 100, in place at 200, and known to everybody at 250. */
const RESTORE: Restore = { copyBeganAt: 100, restoredAt: 200, noticedBy: 250 };
const [OLD, NEW] = [0, 210];

const jobOf = (id: string, kind: string, fence: string, state: JobInfo["state"] = "succeeded"): [string, JobInfo] => {
  const [epoch, number] = fence.split(".").map(Number);
  return [id, { id, kind, state, error: null, epoch, attempt: number } as JobInfo];
};
const at = (instant: number, told: Told, since = OLD): World["told"][number] => ({ ...told, at: instant, since });
const ordered = (id: string, kind: string, asked: number): World["told"] => [
  at(asked, { what: "ask", id, kind }),
  at(asked + 1, { what: "ack", id, got: id, created: true }),
];
const start = (id: string, fence: string): Told => ({ what: "start", id, kind: "", fence });
const committed = (id: string, fence: string): Told => ({ what: "committed", id, fence });

/** Whatever may happen around a restore in which every promise holds. */
function soundWorld(): World {
  return {
    jobs: new Map([
      jobOf("done", transfer.name, "1.1"),
      jobOf("again", transfer.name, "2.1"),
      jobOf("running", nap.name, "2.2"),
      jobOf("later", nap.name, "2.1"),
    ]),
    rows: [
      { job: "done", amount: 1, fence: "1.1" },
      { job: "again", amount: 1, fence: "2.1" },
    ],
    told: [
      // Finished before the copy.
      ...ordered("done", transfer.name, 10),
      at(20, start("done", "1.1")),
      at(30, committed("done", "1.1")),
      // Queued in the copy; finished after it, which is taken back; and run again, by a worker that began after the restore.
      ...ordered("again", transfer.name, 40),
      at(110, start("again", "1.1")),
      at(120, committed("again", "1.1")),
      at(220, start("again", "2.1"), NEW),
      at(260, committed("again", "2.1"), NEW),
      // Running in the copy.
      ...ordered("running", nap.name, 50),
      at(60, start("running", "1.1")),
      at(230, start("running", "2.2"), NEW),
      // Ordered after the copy, and by a client that had not noticed yet.
      ...ordered("gone", nap.name, 150),
      at(160, start("gone", "1.1")),
      ...ordered("aside", nap.name, 240),
      at(245, start("aside", "1.1")),
      ...ordered("later", nap.name, 300),
      at(310, start("later", "2.1"), NEW),
    ],
  };
}

function judged({ jobs, rows, told }: World): Promise<RestoreJudgement> {
  const engine = {
    list: async () => ({ jobs: [...jobs.values()], next: null }),
    get: async (id: string) => ({ ...jobs.get(id), history: [] }),
  };
  const ledger = { entries: async () => rows } as unknown as Ledger;
  const lines = told.map((line): Line => ({ pid: line.since + 1, ...line })).toSorted((a, b) => a.at - b.at);
  return judgeRestores(engine as unknown as Engine, ledger, lines, [RESTORE]);
}

const FAULTS: readonly {
  readonly what: string;
  readonly fault: (world: World) => void;
  readonly says: readonly string[];
  readonly counts?: Partial<RestoreJudgement>;
}[] = [
  {
    what: "a job that was acknowledged before the copy and is missing",
    fault: ({ told }) => void told.push(...ordered("vanished", nap.name, 90)),
    says: ["job vanished was acknowledged before the copy or after the restore, and is not in the store"],
    counts: { lost: 1 },
  },
  {
    what: "a job that was acknowledged when everybody had to know, into a store that is not there any more",
    fault: ({ told }) => void told.push(...ordered("vanished", nap.name, 260)),
    says: ["job vanished was acknowledged before the copy or after the restore, and is not in the store"],
    counts: { lost: 1 },
  },
  {
    what: "a job that does not end",
    fault: ({ jobs }) => void jobs.set(...jobOf("later", nap.name, "2.1", "running")),
    says: ["job later is still running"],
    counts: { lost: 1 },
  },
  {
    what: "one fence of a job before and after",
    fault: ({ told, jobs }) => {
      jobs.set(...jobOf("again", transfer.name, "2.1"));
      told.push(at(130, start("running", "2.2")));
    },
    says: [
      "job running was started twice under one fence: 1.1, 2.2, 2.2",
      "job again was started under fence 2.1 after a restore before which 2 was issued",
      "job running was started under fence 2.2 after a restore before which 2 was issued",
      "job later was started under fence 2.1 after a restore before which 2 was issued",
    ],
  },
  {
    what: "an epoch that was issued before",
    fault: ({ told, jobs }) => {
      jobs.set(...jobOf("later", nap.name, "1.1"));
      told.splice(-1, 1, at(310, start("later", "1.1"), NEW));
    },
    says: ["job later was started under fence 1.1 after a restore before which 1 was issued"],
  },
  {
    what: "a user's row that stayed although its job went back",
    fault: ({ rows }) => void rows.push({ job: "gone", amount: 1, fence: "1.1" }),
    says: ["job gone has a row in the ledger and is not in the store"],
  },
  {
    what: "a commit of an attempt from before that was accepted",
    fault: (world) =>
      void (world.rows = world.rows.map((row) => (row.job === "again" ? { ...row, fence: "1.1" } : row))),
    says: [
      "job again was owned by attempt 2.1 and committed by attempt 1.1",
      "job again was committed before the copy or after the restore, and the row of that attempt is not there",
    ],
  },
  {
    what: "two rows of one transfer",
    fault: ({ rows }) => void rows.push({ job: "again", amount: 1, fence: "1.1" }),
    says: ["job again has 2 rows in the ledger"],
    counts: { committedTwice: 1 },
  },
  {
    what: "an innocent in quarantine",
    fault: ({ jobs }) => void jobs.set(...jobOf("running", nap.name, "2.2", "quarantined")),
    says: [`job running (${nap.name}) is quarantined, not succeeded`],
  },
  {
    what: "a job that nobody ordered",
    fault: ({ jobs }) => void jobs.set(...jobOf("phantom", nap.name, "2.1")),
    says: ["job phantom is in the store and was never ordered"],
    counts: { enqueued: 5 },
  },
];

const SOUND = { enqueued: 4, takenBack: 2, lost: 0, committedTwice: 0 };

describe("the judge of a restore", () => {
  it("has nothing to say of a world in which every promise holds, whatever went back with the store", async () => {
    assert.deepEqual(await judged(soundWorld()), { ...SOUND, violations: [] });
  });

  for (const { what, fault, says, counts } of FAULTS)
    it(`notices ${what}`, async () => {
      const world = soundWorld();
      fault(world);
      assert.deepEqual(await judged(world), { ...SOUND, ...counts, violations: says });
    });
});

function openIn(t: TestContext, file: string): DatabaseSync {
  const db = new DatabaseSync(file);
  t.after(() => db.close());
  return db;
}

it("a copy takes the place of a file with its log, and a process that has the old one open goes on with it", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-copies-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, "app.db");
  const copies = copiesOfFile(file, folder);
  const old = openIn(t, file);
  old.exec("PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)");
  const count = (db: DatabaseSync): unknown => db.prepare("SELECT count(*) AS n FROM t").get()!["n"];
  for (const round of [1, 2]) {
    await copies.take();
    const present = openIn(t, file);
    present.exec("PRAGMA journal_mode = WAL; INSERT INTO t VALUES (2)");
    await copies.putBack();
    assert.equal(count(present), 2, `what is open goes on, round ${round}`);
    assert.equal(count(openIn(t, file)), 1, `what is opened is the copy, round ${round}`);
    present.exec("INSERT INTO t VALUES (3)");
    assert.equal(count(openIn(t, file)), 1, `and stays it, round ${round}`);
  }
});
