// The engines next to us on PostgreSQL: which versions, with which settings, and how they come onto the machine. They are pinned in
// proof/bench/package.json, apart from what users and tests install, and run in separate processes.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

export interface Peer {
  readonly name: string;
  /** Under proof/bench/programs. It handles `fill` and `go` as a floor does, and `inFlight` as our enqueuer does. */
  readonly program: string;
  /** As their documentation has them; given to the program and printed. */
  readonly settings: Readonly<Record<string, unknown>>;
  /** So slow that a tenth of the jobs must do. */
  readonly slow: boolean;
}

/** A connection for each job and one to listen: graphile-worker's own performance test is set up so. */
const POOL = { concurrentJobs: 50, maxPoolSize: 51 };

const graphile = { name: "graphile-worker", program: "peers/graphile-worker", settings: POOL, slow: true };
const graphileBatched = {
  name: "graphile-worker localQueue",
  program: "peers/graphile-worker",
  settings: { ...POOL, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
  slow: false,
};
const pgBoss = {
  name: "pg-boss",
  program: "peers/pg-boss",
  settings: { max: 50, batchSize: 50, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
  slow: true,
};

export const DRAIN_PEERS: readonly Peer[] = [graphile, graphileBatched, pgBoss];
/** How jobs are taken does not matter to who puts them there. */
export const ENQUEUE_PEERS: readonly Peer[] = [graphile, pgBoss];

/** On Redis. */
const bullmq = { name: "BullMQ", program: "peers/bullmq", settings: { concurrency: 50 }, slow: false };
export const REDIS_PEERS: readonly Peer[] = [bullmq];

export function shownSettings(peers: readonly Peer[]): string {
  const shown = (value: object): string =>
    Object.entries(value)
      .map(([key, each]) => `${key} ${typeof each === "object" ? `(${shown(each as object)})` : String(each)}`)
      .join(", ");
  return peers.map(({ name, settings }) => `${name} with ${shown(settings)}`).join("; ");
}

const here = fileURLToPath(new URL(".", import.meta.url));

/** Installs what is pinned, unless it is there. Throws in one sentence if that can't be done. */
export function installPeers(): void {
  const { dependencies } = read("package.json") as { dependencies: Record<string, string> };
  const missing = (): string[] =>
    Object.entries(dependencies)
      .filter(([name, version]) => installedVersion(name) !== version)
      .map(([name, version]) => `${name} ${version}`);
  if (missing().length === 0) return;
  process.stderr.write(`Installing the peers into proof/bench/node_modules: ${missing().join(", ")}\n`);
  const options = ["--ignore-scripts", "--no-audit", "--no-fund"];
  // A registry without the optional parts of other platforms makes `ci` refuse the lock file; the versions are compared below in any case.
  for (const command of [["ci"], ["install", "--no-save", "--no-package-lock"]])
    try {
      execFileSync("npm", [...command, ...options], { cwd: here, stdio: ["ignore", 2, 2] });
      break;
    } catch {
      // What is missing then says it.
    }
  if (missing().length > 0)
    throw new PeersMissing(
      `The peers ${missing().join(" and ")} could not be installed into proof/bench/node_modules. Measure without them: --no-peers`,
    );
}

export class PeersMissing extends Error {}

function installedVersion(name: string): string | undefined {
  try {
    return (read(`node_modules/${name}/package.json`) as { version: string }).version;
  } catch {
    return undefined;
  }
}

function read(file: string): unknown {
  return JSON.parse(readFileSync(`${here}/${file}`, "utf8"));
}
