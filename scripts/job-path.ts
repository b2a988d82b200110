// `npm run job-path`: the files of src that one job crosses on each store, from `enqueue` until it is settled, by V8's own coverage. A
// worker is idle and everything is loaded; then a no-op job is enqueued in the same process, several times over. A file is on the way if
// every one of these jobs ran code in it, so a timer that fires meanwhile does not count. What the maintenance thread did in the
// meantime is listed apart. test/job-path.test.ts holds how many there may be.
import { mkdtempSync, rmSync } from "node:fs";
import { type Profiler, Session } from "node:inspector/promises";
import { tmpdir } from "node:os";
import { join, relative, sep } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { PostgresServer } from "../proof/servers/postgres-server.ts";
import { migrationsOf } from "../src/stores/registry.ts";
import { job, open } from "../src/index.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const STORES = ["sqlite", "postgres"] as const;
const JOBS = 8;
/** Long enough for whatever a settled job leaves to be done. */
const IDLE_MS = 150;
/** Rooms in the order in which a job comes to them; the rest by name. */
const ROOMS = ["engine", "job", "worker", "recovery", "stores", "platform", "telemetry"];
const USAGE = `Usage: npm run job-path -- [--store sqlite|postgres] [--json]

  --store name   only this store (default: both)
  --json         print one JSON document, with the functions that ran in each file`;

type StoreName = (typeof STORES)[number];
/** By file, relative to the repository: the functions that ran. */
type Crossed = ReadonlyMap<string, ReadonlySet<string>>;

interface Path {
  readonly store: StoreName;
  /** In the main thread, by every job. */
  readonly files: Crossed;
  /** In the maintenance thread, by whatever it did meanwhile. */
  readonly thread: Crossed;
}

class UsageError extends Error {}

async function main(): Promise<number> {
  const { stores, json } = options();
  const paths: Path[] = [];
  for (const store of stores) paths.push(await (store === "sqlite" ? onSqlite() : onPostgres()));
  if (json) console.log(JSON.stringify({ paths: paths.map(asJson) }));
  else console.log(paths.map(asText).join("\n\n"));
  return 0;
}

function options(): { stores: readonly StoreName[]; json: boolean } {
  try {
    const { values } = parseArgs({
      options: { store: { type: "string" }, json: { type: "boolean", default: false } },
    });
    const stores = STORES.filter((store) => values.store === undefined || store === values.store);
    if (stores.length === 0) throw new Error(`There is no store ${values.store}.`);
    return { stores, json: values.json };
  } catch (thrown) {
    throw new UsageError((thrown as Error).message);
  }
}

async function onSqlite(): Promise<Path> {
  const folder = mkdtempSync(join(tmpdir(), "outlive-job-path-"));
  try {
    return await pathOn("sqlite", `sqlite:${join(folder, "jobs.db")}`);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function onPostgres(): Promise<Path> {
  const server = await PostgresServer.create({ fsync: false });
  const end = (): void => server.destroyNow();
  process.once("exit", end);
  try {
    await (await migrationsOf(server.url())).up();
    return await pathOn("postgres", server.url());
  } finally {
    await server.destroy();
    process.off("exit", end);
  }
}

async function pathOn(store: StoreName, url: string): Promise<Path> {
  // From the start, so that functions that are suspended when a job arrives are counted, too.
  await using coverage = await Coverage.start();
  const noop = job<{ n: number }>("noop");
  noop.handle(() => {});
  await using engine = await open(url, { jobs: [noop], logger: false });
  let settled = (): void => {};
  engine.on("job.succeeded", () => settled());
  const handle = await engine.start({ concurrency: 10 });
  const runOne = async (n: number): Promise<void> => {
    const done = new Promise<void>((resolve) => (settled = resolve));
    await engine.enqueue(noop, { n });
    await done;
  };
  // The first jobs load and prepare what later ones find.
  for (let n = 0; n < 3; n++) await runOne(n);
  const main: Crossed[] = [];
  const thread: Crossed[] = [];
  for (let n = 0; n < JOBS; n++) {
    await delay(IDLE_MS);
    await coverage.take();
    await runOne(n);
    const taken = await coverage.take();
    main.push(taken.main);
    thread.push(taken.thread);
  }
  await handle.stop();
  return { store, files: inAll(main), thread: inAny(thread) };
}

/** Precise coverage of this thread and of the threads that start after it. */
class Coverage {
  readonly #session: Session;
  readonly #threads = new Map<string, ThreadSession>();

  static async start(): Promise<Coverage> {
    const session = new Session();
    session.connect();
    const coverage = new Coverage(session);
    session.on("NodeWorker.attachedToWorker", ({ params }) => void coverage.#attach(params.sessionId));
    session.on("NodeWorker.detachedFromWorker", ({ params }) => coverage.#threads.delete(params.sessionId));
    session.on("NodeWorker.receivedMessageFromWorker", ({ params }) =>
      coverage.#threads.get(params.sessionId)?.receive(params.message),
    );
    await session.post("NodeWorker.enable", { waitForDebuggerOnStart: false });
    await session.post("Profiler.enable");
    await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
    return coverage;
  }

  private constructor(session: Session) {
    this.#session = session;
  }

  /** What ran since the last time. */
  async take(): Promise<{ main: Crossed; thread: Crossed }> {
    const thread = await Promise.all([...this.#threads.values()].map((each) => each.take()));
    const { result } = await this.#session.post("Profiler.takePreciseCoverage");
    return { main: crossed(result), thread: inAny(thread.map(crossed)) };
  }

  async #attach(id: string): Promise<void> {
    const thread = new ThreadSession(this.#session, id);
    this.#threads.set(id, thread);
    await thread.start();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#session.post("Profiler.disable");
    this.#session.disconnect();
  }
}

type Scripts = readonly Profiler.ScriptCoverage[];

/** The same in another thread, by messages through the session of this one. */
class ThreadSession {
  readonly #session: Session;
  readonly #id: string;
  readonly #asked = new Map<number, (answer: { readonly result?: Scripts }) => void>();
  #calls = 0;

  constructor(session: Session, id: string) {
    this.#session = session;
    this.#id = id;
  }

  async start(): Promise<void> {
    await this.#ask("Profiler.enable");
    await this.#ask("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
  }

  async take(): Promise<Scripts> {
    return (await this.#ask("Profiler.takePreciseCoverage")).result ?? [];
  }

  receive(text: string): void {
    const message = JSON.parse(text) as { id?: number; result?: { readonly result?: Scripts } };
    if (message.id !== undefined) this.#asked.get(message.id)?.(message.result ?? {});
  }

  #ask(method: string, params: object = {}): Promise<{ readonly result?: Scripts }> {
    const id = ++this.#calls;
    const message = JSON.stringify({ id, method, params });
    return new Promise((resolve, reject) => {
      this.#asked.set(id, resolve);
      this.#session.post("NodeWorker.sendMessageToWorker", { sessionId: this.#id, message }).catch(reject);
    });
  }
}

function crossed(scripts: Scripts): Crossed {
  const files = new Map<string, Set<string>>();
  for (const { url, functions } of scripts) {
    const path = url.startsWith("file:") ? relative(ROOT, fileURLToPath(url)).replaceAll(sep, "/") : "";
    const ran = functions.filter(({ ranges }) => ranges.some(({ count }) => count > 0));
    if (path.startsWith("src/") && ran.length > 0)
      files.set(path, new Set(ran.map(({ functionName }) => functionName || "(anonymous)")));
  }
  return files;
}

function inAll(runs: readonly Crossed[]): Crossed {
  return new Map([...inAny(runs)].filter(([path]) => runs.every((run) => run.has(path))));
}

function inAny(runs: readonly Crossed[]): Crossed {
  const all = new Map<string, ReadonlySet<string>>();
  for (const run of runs)
    for (const [path, functions] of run) all.set(path, (all.get(path) ?? new Set()).union(functions));
  return new Map([...all].toSorted(([a], [b]) => rank(a) - rank(b) || (a < b ? -1 : 1)));
}

function rank(path: string): number {
  const at = ROOMS.indexOf(path.split("/")[1]!);
  return at === -1 ? ROOMS.length : at;
}

function asJson({ store, files, thread }: Path): object {
  const list = (of: Crossed): object[] => [...of].map(([path, functions]) => ({ path, functions: [...functions] }));
  return { store, count: files.size, files: list(files), maintenanceThread: list(thread) };
}

function asText({ store, files, thread }: Path): string {
  return [
    `One job on ${store}, from enqueue until it is settled:`,
    ...[...files.keys()].map((path) => `  ${path}`),
    `Meanwhile in the maintenance thread (${thread.size}): ${[...thread.keys()].join(", ") || "nothing"}`,
    `${files.size} files on ${store}`,
  ].join("\n");
}

process.exitCode = await main().catch((thrown: unknown) => {
  console.error(thrown instanceof UsageError ? `${thrown.message}\n\n${USAGE}` : thrown);
  return thrown instanceof UsageError ? 2 : 1;
});
