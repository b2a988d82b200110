// Workers of an older package on a store of theirs, which this version then migrates under them. They may go on or stop with a sentence;
// nothing may be lost, run to its end twice, or be committed twice.
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { migrationsOf } from "../../../src/stores/registry.ts";

export interface Surroundings {
  /** The tree of this version, and of the older one. */
  readonly root: string;
  readonly previous: string;
  readonly url: string;
  readonly folder: string;
  readonly jobs: number;
}

export interface Figures {
  readonly jobs: number;
  /** How many attempts the older workers began before and after the migration. */
  readonly begunBefore: number;
  readonly begunAfter: number;
  readonly begunByNew: number;
  /** What the older workers said when they stopped, or could not start. */
  readonly sentences: readonly string[];
  readonly storeFailures: readonly string[];
  /** Handlers that ended just when their worker released their attempt: it runs again, as the promise for plain handlers allows. */
  readonly endedAsReleased: number;
  readonly counters: Record<string, number>;
  readonly violations: readonly string[];
}

interface Line {
  readonly pid: number;
  readonly what: string;
  readonly id?: string;
  readonly fence?: { readonly number: number };
  readonly code?: string;
  readonly message?: string;
  readonly error?: string;
}

const WORKERS = 2;

export async function runWithPrevious({ root, previous, url, folder, jobs }: Surroundings): Promise<Figures> {
  const history = join(folder, "history.jsonl");
  const lines = (): Line[] =>
    existsSync(history)
      ? readFileSync(history, "utf8")
          .split("\n")
          .slice(0, -1)
          .map((line) => JSON.parse(line) as Line)
      : [];
  const started: Started[] = [];
  const start = (tree: string, ...role: string[]): Started => {
    const one = startProgram([tree, url, history, ...role]);
    started.push(one);
    return one;
  };
  try {
    if ((await start(previous, "create", String(jobs)).ended) !== 0) throw new Error(JSON.stringify(lines().at(-1)));
    const old = Array.from({ length: WORKERS }, () => start(previous, "work"));
    const isOld = ({ pid }: Line): boolean => old.some((one) => one.pid === pid);
    const begun = (which: (line: Line) => boolean): number =>
      lines().filter((line) => line.what === "start" && which(line)).length;
    await until(() => begun(isOld) >= jobs / 4, "the older workers work");

    await migrateUnderThem(url);
    const begunBefore = begun(isOld);
    // More work than the older workers can have done.
    if ((await start(root, "enqueue", String(jobs)).ended) !== 0) throw new Error(JSON.stringify(lines().at(-1)));
    const current = Array.from({ length: WORKERS }, () => start(root, "work"));
    const late = start(previous, "work");
    await Promise.all([...old, late].map(({ ended }) => ended));
    const store = storeAt(url);
    await until(async () => (await store.counters()).unfinished === 0, "every job has ended");
    for (const one of current) one.process.kill("SIGTERM");
    await Promise.all(current.map(({ ended }) => ended));

    const all = lines();
    const counters = await store.counters();
    const released = new Set(await store.releases());
    const ends = all.filter(({ what }) => what === "end");
    const accepted = ends.filter(({ id, fence }) => !released.has(`${id} ${fence!.number}`));
    const violations = [
      ...(counters.succeeded === 4 * jobs
        ? []
        : [`${4 * jobs - counters.succeeded} of ${4 * jobs} jobs did not succeed`]),
      ...repeated(await store.ledger(), "committed"),
      ...missing((await store.ledger()).length, 2 * jobs, "transfers committed"),
      ...repeated(
        accepted.map(({ id }) => id!),
        "ended",
      ),
      ...(counters.blamed === 0 ? [] : [`${counters.blamed} jobs were blamed for a death`]),
      ...[...old, late]
        .filter(({ pid }) => !all.some((line) => line.pid === pid && line.code === "SCHEMA_NEWER"))
        .map(({ pid }) => `the older worker ${pid} did not say that it is too old`),
    ];
    const sentences = all.filter(({ what }) => what === "refused").map(({ message }) => message!);
    const failures = all.filter(({ what }) => what === "store.failed").map(({ error }) => error!);
    return {
      jobs: 4 * jobs,
      begunBefore,
      begunAfter: begun(isOld) - begunBefore,
      begunByNew: begun(({ pid }) => current.some((one) => one.pid === pid)),
      sentences: [...new Set(sentences)],
      storeFailures: [...new Set(failures)],
      endedAsReleased: ends.length - accepted.length,
      counters,
      violations,
    };
  } finally {
    for (const one of started) one.process.kill("SIGKILL");
  }
}

async function migrateUnderThem(url: string): Promise<void> {
  await (await migrationsOf(url)).up();
}

interface Started {
  readonly pid: number;
  readonly process: ChildProcess;
  readonly ended: Promise<number | null>;
}

function startProgram(args: readonly string[]): Started {
  const program = fileURLToPath(new URL("program.ts", import.meta.url));
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", program, ...args], {
    stdio: ["ignore", "inherit", "inherit"],
  });
  return { pid: child.pid!, process: child, ended: new Promise((resolve) => child.once("exit", resolve)) };
}

interface StoreReader {
  counters(): Promise<{
    readonly unfinished: number;
    readonly succeeded: number;
    readonly crashes: number;
    readonly blamed: number;
    readonly losses: number;
  }>;
  ledger(): Promise<readonly string[]>;
  /** The attempts that their own worker released, as `id fence`. */
  releases(): Promise<readonly string[]>;
}

/** By the tables' own word, not by the engine's. */
function storeAt(url: string): StoreReader {
  const counts = (jobs: string): string =>
    `SELECT sum(CASE WHEN state < 2 THEN 1 ELSE 0 END) AS unfinished, sum(CASE WHEN state = 2 THEN 1 ELSE 0 END) AS succeeded,
     sum(crashes) AS crashes, sum(blamed) AS blamed, sum(losses) AS losses FROM ${jobs}`;
  const ask = url.startsWith("sqlite:") ? askFile(url.slice("sqlite:".length)) : askServer(url);
  return {
    async counters() {
      const [row] = await ask(counts(url.startsWith("sqlite:") ? "outlive_jobs" : "outlive.jobs"));
      const number = (key: string): number => Number(row![key]);
      return {
        unfinished: number("unfinished"),
        succeeded: number("succeeded"),
        crashes: number("crashes"),
        blamed: number("blamed"),
        losses: number("losses"),
      };
    },
    async releases() {
      const [jobs, history] = url.startsWith("sqlite:")
        ? ["outlive_jobs", "outlive_history"]
        : ["outlive.jobs", "outlive.history"];
      const rows = await ask(
        `SELECT j.id, h.fence FROM ${history} h JOIN ${jobs} j ON j.seq = h.job WHERE h.event = 'release' AND h.actor LIKE 'worker/%'`,
      );
      return rows.map(({ id, fence }) => `${String(id)} ${String(fence)}`);
    },
    ledger: async () => (await ask("SELECT job FROM ledger")).map(({ job }) => job as string),
  };
}

type Ask = (text: string) => Promise<readonly Record<string, unknown>[]>;

function askFile(path: string): Ask {
  return async (text) => {
    const db = new DatabaseSync(path, { readOnly: true });
    try {
      return db.prepare(text).all();
    } finally {
      db.close();
    }
  };
}

function askServer(url: string): Ask {
  return async (text) => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    try {
      return (await client.query<Record<string, unknown>>(text)).rows;
    } finally {
      await client.end();
    }
  };
}

function repeated(ids: readonly string[], what: string): string[] {
  const seen = new Map<string, number>();
  for (const id of ids) seen.set(id, (seen.get(id) ?? 0) + 1);
  return [...seen].filter(([, times]) => times > 1).map(([id, times]) => `${id} ${what} ${times} times`);
}

function missing(found: number, expected: number, what: string): string[] {
  return found === expected ? [] : [`${what}: ${found} of ${expected}`];
}

const PATIENCE_MS = 120_000;

async function until(is: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const limit = performance.now() + PATIENCE_MS;
  while (!(await is())) {
    if (performance.now() > limit) throw new Error(`Not within ${PATIENCE_MS} ms: ${what}.`);
    await pause(50);
  }
}
