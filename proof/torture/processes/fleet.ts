// The processes of the rig: workers, producers that enqueue, and an `outlive work` supervisor. What each of them runs, and how it may end.
import { fileURLToPath } from "node:url";
import {
  type Exit,
  Fleet,
  type FromProcess,
  type Place as AnyPlace,
  type Kill as AnyKill,
} from "../../../src/torture/fleet.ts";
import { tick } from "./jobs.ts";
import { CONCURRENCY, HEAP_MB, HEARTBEAT, LEASE, runsTicksOnly, SUPERVISED } from "./settings.ts";

export type Role = "worker" | "producer" | "supervisor";
export type Place = AnyPlace<Role>;
export type Kill = AnyKill<Role>;
export type RigFleet = Fleet<Role>;
export type RigExit = Exit<Role>;

/** How the worker of one place is started, if not as the others. */
export interface WorkerStart {
  readonly url: string;
  /** A program that takes the address of the store; default: the worker of this folder. */
  readonly program?: string;
  /** Starts it in other surroundings. */
  readonly launcher?: readonly string[];
}

export interface RigFleetOptions {
  readonly url: string;
  /** On PostgreSQL; null: the store is a file. */
  readonly schema: string | null;
  readonly seed: number;
  readonly places: Readonly<Record<Role, number>>;
  /** Where the processes write their histories. */
  readonly histories: string;
  /** A folder in which the processes keep their compiled code for the next ones. */
  readonly cache: string;
  /** The program of the command line, for the supervisor. */
  readonly cli: string;
  /** Default: all workers open `url`. */
  readonly workerAt?: (number: number) => WorkerStart;
  /** For every process. */
  readonly env?: Readonly<Record<string, string>>;
  heard(place: Place, message: FromProcess): void;
  /** Whether the store was broken on purpose at any time since then, or shortly before: a process that starts meanwhile says that it can't, and ends. */
  wasBrokenSince(at: number): boolean;
}

const file = (name: string): string => fileURLToPath(new URL(`${name}.ts`, import.meta.url));

export function rigFleet(options: RigFleetOptions): RigFleet {
  const { places, histories, cache, schema, env } = options;
  return new Fleet<Role>({
    places,
    cache,
    cwd: histories,
    execArgv: [`--max-old-space-size=${HEAP_MB}`],
    env: {
      OUTLIVE_TORTURE_HISTORY: histories,
      // The user's own must reach no process, also if the store is a file.
      OUTLIVE_POSTGRES_SCHEMA: schema ?? undefined,
      OUTLIVE_HEARTBEAT_INTERVAL: HEARTBEAT,
      OUTLIVE_HEARTBEAT_LEASE: LEASE,
      ...env,
    },
    programOf: (place, life) => programOf(place, life, options),
    heard: (place, message) => options.heard(place, message),
    mayEnd: (exit) => (exit.code === 1 && byTheStore(exit, options)) || byItsJob(exit),
  });
}

function programOf(
  { role, number }: Place,
  life: number,
  { url, seed, cli, workerAt }: RigFleetOptions,
): readonly [program: string, args: readonly string[], launcher?: readonly string[]] {
  switch (role) {
    case "worker": {
      const { url: own, program = file("worker"), launcher } = workerAt?.(number) ?? { url };
      return [program, runsTicksOnly(number) ? [own, tick.name] : [own], launcher ?? []];
    }
    case "producer":
      return [file("producer"), [url, `p${number}.${life}`, String(seed + 1_000 * life + number)]];
    case "supervisor":
      return [
        cli,
        ["work", file("jobs"), "--store", url, "--processes", `${SUPERVISED}`, "--concurrency", `${CONCURRENCY}`],
      ];
  }
}

/**
 * The store is broken, or it was while this process started, which takes long on a busy machine. Either way the process says so with an error of ours: one of
 * the driver is a failure of its own. A supervisor prints what its processes say.
 */
function byTheStore({ role, said, startedAt, hadReported }: RigExit, options: RigFleetOptions): boolean {
  const isOurs = role === "supervisor" || /\bOutliveError\b|\bcode: 'STORE_/.test(said);
  return isOurs && options.wasBrokenSince(hadReported ? Date.now() : startedAt);
}

/** A poison job kills with SIGKILL; one that takes all memory ends with SIGABRT, or with 134 where a shell stood between. */
export function byItsJob({ role, code, signal }: RigExit): boolean {
  return role === "worker" && (signal === "SIGKILL" || signal === "SIGABRT" || signal === "SIGTRAP" || code === 134);
}
