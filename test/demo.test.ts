// The demo as a person or a script runs it: a short run that keeps every promise, wrong command lines, and what is left behind.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";

const BIN = fileURLToPath(new URL("../src/cli/bin.ts", import.meta.url));

interface Demo {
  readonly child: ChildProcess;
  /** The folder in which it makes its own. */
  readonly folder: string;
  readonly ended: Promise<{ code: number | null; stdout: string; stderr: string }>;
  /** Resolves with everything on stderr so far when `text` has appeared there. */
  readonly says: (text: string) => Promise<string>;
}

function demo(t: TestContext, ...args: string[]): Demo {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-demo-"));
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", BIN, "demo", ...args], {
    // Every command leaves its compiled code where Node does, for the next one; that is not the demo's.
    env: { ...process.env, TMPDIR: folder, NODE_COMPILE_CACHE: join(tmpdir(), "node-compile-cache") },
    stdio: ["ignore", "pipe", "pipe"],
  });
  t.after(() => {
    child.kill("SIGTERM");
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  });
  let stdout = "";
  let stderr = "";
  const heard = new Set<() => void>();
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    stderr += text;
    for (const listener of heard) listener();
  });
  const ended = new Promise<{ code: number | null; stdout: string; stderr: string }>((resolve) =>
    child.on("close", (code) => resolve({ code, stdout, stderr })),
  );
  const says = (text: string): Promise<string> =>
    new Promise((resolve, reject) => {
      const look = (): void => {
        if (stderr.includes(text)) resolve(stderr);
      };
      heard.add(look);
      look();
      void ended.then(() => reject(new Error(`it ended without saying "${text}":\n${stderr}`)));
    });
  return { child, folder, ended, says };
}

test("a short demo kills, freezes and poisons workers, loses nothing, commits nothing twice, and leaves nothing behind", async (t) => {
  const run = demo(t, "--seconds", "6", "--jobs", "600", "--json");
  const { code, stdout, stderr } = await run.ended;
  assert.equal(code, 0, stderr);
  const lines = stdout.trimEnd().split("\n");
  assert.equal(lines.length, 1, "nothing but one line on stdout");
  const found = JSON.parse(lines[0]!) as Record<string, number> & { recoveryMs: Record<string, number> };
  assert.deepEqual(Object.keys(found), [
    "store",
    "enqueued",
    "succeeded",
    "lost",
    "committedTwice",
    "quarantined",
    "poison",
    "kills",
    "zombies",
    "staleWritesRejected",
    "recoveryMs",
    "jobsPerSecond",
  ]);
  const { store, enqueued, succeeded, lost, committedTwice, quarantined, poison } = found;
  assert.deepEqual(
    { store, enqueued, succeeded, lost, committedTwice, quarantined, poison },
    { store: "sqlite", enqueued: 601, succeeded: 600, lost: 0, committedTwice: 0, quarantined: 1, poison: 1 },
  );
  assert.ok(found["kills"]! >= 4, "all four at once, at least");
  assert.ok(found["zombies"]! >= 1);
  assert.ok(found["staleWritesRejected"]! >= 1);
  const { p50, p99, max } = found.recoveryMs;
  assert.ok(p50! > 0 && p50! <= p99! && p99! <= max!, JSON.stringify(found.recoveryMs));
  assert.deepEqual(readdirSync(run.folder), []);
});

test("Ctrl-C in the middle of it leaves no process and no file", async (t) => {
  const run = demo(t, "--seconds", "30", "--json");
  await run.says("killed worker");
  const workers = childrenOf(run.child.pid!);
  assert.ok(workers.length > 0, "workers are running");
  run.child.kill("SIGINT");
  assert.equal((await run.ended).code, 130);
  assert.deepEqual(readdirSync(run.folder), []);
  for (const pid of workers) await gone(pid);
});

test("a demo that is killed itself takes its workers with it", async (t) => {
  const run = demo(t, "--seconds", "30", "--json");
  await run.says("killed worker");
  const workers = childrenOf(run.child.pid!);
  run.child.kill("SIGKILL");
  await run.ended;
  for (const pid of workers) await gone(pid);
});

test("a store that has no demo, a wrong number and an unknown option are refused with one sentence", async (t) => {
  const cases = [
    [
      ["--store", "mysql://u:secret@h/db"],
      'outlive: There is no demo on the store "mysql://u:[redacted]@h/db". There is: sqlite, postgres, redis.',
    ],
    [["--workers", "1"], "error: option '--workers <n>' argument '1' is invalid. Use a whole number from 2 to 16."],
    [
      ["--jobs", "many"],
      "error: option '--jobs <n>' argument 'many' is invalid. Use a whole number from 100 to 200000.",
    ],
    [["--fast"], "error: unknown option '--fast'"],
  ] as const;
  for (const [args, sentence] of cases) {
    const { code, stdout, stderr } = await demo(t, ...args).ended;
    assert.equal(code, 2);
    assert.equal(stdout, "");
    assert.ok(stderr.startsWith(sentence), stderr);
  }
});

test("the help names every option of the demo", async (t) => {
  const { code, stdout } = await demo(t, "--help").ended;
  assert.equal(code, 0);
  for (const option of ["--seconds", "--jobs", "--workers", "--seed", "--keep", "--json", "--store"])
    assert.ok(stdout.includes(`  ${option}`), option);
});

function childrenOf(pid: number): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && parentOf(Number(name)) === pid)
    .map(Number);
}

function parentOf(pid: number): number | null {
  try {
    // The name of the program is in brackets and may hold anything; state and parent follow it.
    const [, parent] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)!.split(" ");
    return Number(parent);
  } catch {
    return null;
  }
}

/** Resolves when the process is gone; the test's own time limit is the limit. A dead one that was not reaped is gone. */
async function gone(pid: number): Promise<void> {
  while (running(pid)) await new Promise((resolve) => setTimeout(resolve, 10));
}

function running(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)![0] !== "Z";
  } catch {
    return false;
  }
}
