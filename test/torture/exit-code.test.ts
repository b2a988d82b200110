// A run as CI and a user start it, on a store that is spoiled behind the engine's back: it has to see that, to say so with its exit
// code, to keep everything that shows it, and to say how the run is made again.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { readHistories } from "../../proof/torture/processes/history.ts";
import { untilTrue } from "../support/processes.ts";

const fileOf = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
const NUMBERS = ["--kills", "3", "--workers", "3", "--seed", "1"];

interface Ledger {
  readonly table: string;
  /** Of the job's id. */
  readonly column: string;
}

const COMMANDS = [
  {
    title: "the rig of the repository",
    args: () => [fileOf("../../proof/torture/main.ts"), "--store", "sqlite", ...NUMBERS, "--json"],
    ledger: { table: "torture_ledger", column: "job" },
    hasHistories: true,
    again: /^The same plan again, .*: npm run torture -- --store sqlite --kills 3 --seed 1 --workers 3$/m,
  },
  {
    title: "outlive torture",
    args: (folder: string) => [
      fileOf("../../src/cli/bin.ts"),
      "torture",
      ...NUMBERS,
      "--json",
      "--store",
      `sqlite:${join(folder, "app.db")}`,
    ],
    ledger: { table: "ledger", column: "job_id" },
    hasHistories: false,
    again: /^The same plan again, .*: outlive torture --kills 3 --workers 3 --seed 1$/m,
  },
];

/** The store of the run, on its small disk or, where none may be mounted, in its folder. */
function storeIn(folder: string): string | undefined {
  return readdirSync(folder)
    .map((name) => join(folder, name, "torture.db"))
    .find((file) => existsSync(file));
}

/** Books one transfer a second time and returns which; undefined: none is booked yet. */
function bookAgain(file: string, { table, column }: Ledger): string | undefined {
  const db = new DatabaseSync(file, { timeout: 10_000 });
  try {
    const again = db.prepare(`INSERT INTO ${table} SELECT * FROM ${table} LIMIT 1 RETURNING ${column} AS job`);
    return again.get()?.["job"] as string | undefined;
  } catch (thrown) {
    if (/no such table|is full|is locked/.test((thrown as Error).message)) return undefined;
    throw thrown;
  } finally {
    db.close();
  }
}

function bookings(file: string, { table, column }: Ledger, job: string): number {
  const db = new DatabaseSync(file, { readOnly: true });
  try {
    return db.prepare(`SELECT count(*) AS n FROM ${table} WHERE ${column} = ?`).get(job)!["n"] as number;
  } finally {
    db.close();
  }
}

for (const { title, args, ledger, hasHistories, again } of COMMANDS)
  test(`${title}: a transfer that is in the ledger twice is a violation, reported with its name and exit code 1, and kept`, async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "outlive-test-torture-"));
    const rig = spawn(process.execPath, args(folder), {
      stdio: ["ignore", "pipe", "pipe"],
      env: { ...process.env, TMPDIR: folder },
    });
    const ended = once(rig, "exit");
    // A signal lets it end its processes and take its disk away.
    t.after(async () => {
      rig.kill("SIGTERM");
      await ended;
      rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
    });
    const said = Promise.all([text(rig.stdout), text(rig.stderr)]);
    const file = await untilTrue(
      () => storeIn(folder),
      (found) => found !== undefined,
      "the run has its store",
    );
    const job = await untilTrue(
      () => bookAgain(file!, ledger),
      (booked) => booked !== undefined,
      "a transfer is booked",
    );
    const [code] = (await ended) as [number | null];
    const [stdout, stderr] = await said;
    assert.equal(code, 1, stderr);
    const { kills, lost, committedTwice } = JSON.parse(stdout) as Record<string, number>;
    assert.ok(kills! >= 3, stdout);
    assert.deepEqual({ lost, committedTwice }, { lost: 0, committedTwice: 1 });
    assert.match(stderr, new RegExp(`^violation: .*\\b${job}\\b`, "m"));
    assert.match(stderr, again);
    const kept = /^Everything is kept in (.*)$/m.exec(stderr)?.[1];
    assert.ok(kept, stderr);
    assert.equal(bookings(join(kept, "torture.db"), ledger, job!), 2);
    const histories = join(kept, "histories");
    if (hasHistories) assert.ok(readHistories(histories).some(({ what, id }) => what === "committed" && id === job));
    assert.doesNotMatch(readFileSync("/proc/mounts", "utf8"), new RegExp(folder), "no disk is left");
  });
