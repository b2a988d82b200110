// The rig of processes as CI runs it, on a store that somebody spoils behind the engine's back: it has to see that, and to say so with its
// exit code.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { untilTrue } from "../support/processes.ts";

const MAIN = fileURLToPath(new URL("../../torture/main.ts", import.meta.url));

/** The store of the run, on its small disk or, where none may be mounted, in its folder. */
function storeIn(folder: string): string | undefined {
  return readdirSync(folder)
    .map((name) => join(folder, name, "torture.db"))
    .find((file) => existsSync(file));
}

/** Books one transfer a second time; answers which, or undefined if none is booked yet. */
function bookAgain(file: string): string | undefined {
  const db = new DatabaseSync(file, { timeout: 10_000 });
  try {
    return db.prepare("INSERT INTO torture_ledger SELECT * FROM torture_ledger LIMIT 1 RETURNING job").get()?.[
      "job"
    ] as string | undefined;
  } catch (thrown) {
    if (/no such table|is full|is locked/.test((thrown as Error).message)) return undefined;
    throw thrown;
  } finally {
    db.close();
  }
}

test("a transfer that is in the ledger twice is a violation, told with its name, and exit code 1", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-torture-"));
  const args = [MAIN, "--store", "sqlite", "--kills", "3", "--workers", "3", "--seed", "1", "--json"];
  const rig = spawn(process.execPath, args, {
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
    () => bookAgain(file!),
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
});
