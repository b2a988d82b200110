// The command line of the bench, read once. What is wrong is reported in one sentence, before anything runs.
import { parseArgs } from "node:util";
import { AGAINST_NAMES, type AgainstName } from "./against/metrics.ts";
import { STORE_NAMES, type StoreName } from "./stores/tested-store.ts";

export interface Options {
  readonly store: StoreName;
  readonly json: boolean;
  readonly quick: boolean;
  readonly strict: boolean;
  /** Whether a limit that is not kept is an exit code. */
  readonly limits: boolean;
  /** Whether other engines are measured next to us, where the store has such. */
  readonly peers: boolean;
  /** The metrics of batches, in place of the others. */
  readonly batches: boolean;
  /** The metrics of requests, in place of the others. */
  readonly requests: boolean;
  /** The metrics of collections, in place of the others. */
  readonly collections: boolean;
  /** The metrics to run; null: all. */
  readonly only: readonly string[] | null;
  /** The folder of the drain's CPU profiles; null: none. */
  readonly profile: string | null;
}

/** Of `--against`: this tree next to an older commit. */
export interface AgainstOptions {
  readonly revision: string;
  readonly rounds: number;
  /** How many times the CPU of the older commit is allowed. */
  readonly limit: number;
  readonly stores: readonly StoreName[];
  readonly names: readonly AgainstName[];
  readonly json: boolean;
  readonly quick: boolean;
  readonly strict: boolean;
}

export const USAGE = `npm run bench -- [options]
  --json            one last line of JSON instead of the table
  --quick           small counts, under a minute
  --only a,b        these metrics only; drainDeep stands for its three
  --strict          exit 1 if a target is missed
  --limits          exit 1 if a limit is not kept: what must hold on any machine, however busy
  --profile [dir]   CPU profiles of the drain's worker into dir (default ./bench-profile)
  --store name      sqlite (the default), postgres or redis, on a server that the bench starts
  --batches         the metrics of batches: rows, submission, ends, output, memory, and what they cost plain jobs
  --requests        the metrics of requests: rate, CPU, memory, lag, and the time to send again, alongside bare undici
  --collections     the metrics of collections: MB/s from RabbitMQ and embedded alongside bare ones, memory, redelivery, reports
  --no-peers        PostgreSQL: without the engines next to us, which are installed into proof/bench/node_modules otherwise

npm run bench -- --against REV [--store name] [--rounds 9] [--limit 1.05] [--only a,b] [--quick] [--strict] [--json]
  --against REV     CPU per job of this tree and of that commit, in interleaved rounds, on both stores unless --store names one
  --rounds n        how many rounds of each (default 9)
  --limit n         how many times the CPU of REV is allowed (default 1.05); with --strict more is exit 1`;

const OPTIONS = {
  store: { type: "string" },
  json: { type: "boolean", default: false },
  quick: { type: "boolean", default: false },
  strict: { type: "boolean", default: false },
  limits: { type: "boolean", default: false },
  only: { type: "string" },
  profile: { type: "boolean", default: false },
  "no-peers": { type: "boolean", default: false },
  batches: { type: "boolean", default: false },
  requests: { type: "boolean", default: false },
  collections: { type: "boolean", default: false },
  against: { type: "string" },
  rounds: { type: "string" },
  limit: { type: "string" },
  help: { type: "boolean", default: false },
} as const;

/** Those of which there are older commits to hold against. */
const AGAINST_STORES: readonly StoreName[] = ["sqlite", "postgres"];
const ROUNDS = 9;
const LIMIT = 1.05;

export function readOptions(
  argv: readonly string[],
  namesOf: (
    store: StoreName,
    of: { readonly batches: boolean; readonly requests: boolean; readonly collections: boolean },
  ) => readonly string[],
): Options {
  const { values, positionals } = parseArgs({ args: [...argv], allowPositionals: true, options: OPTIONS });
  if (values.help) throw new Usage(USAGE);
  if (values.rounds !== undefined || values.limit !== undefined)
    throw new Usage("--rounds and --limit belong to --against REV.");
  const store = storeOf(values.store ?? "sqlite");
  if ([values.batches, values.requests, values.collections].filter(Boolean).length > 1)
    throw new Usage("Use one of --batches, --requests and --collections.");
  if (positionals.length > (values.profile ? 1 : 0))
    throw new Usage(`${positionals.at(-1)} is not an option.\n${USAGE}`);
  return {
    store,
    peers: !values["no-peers"],
    json: values.json,
    quick: values.quick,
    strict: values.strict,
    limits: values.limits,
    batches: values.batches,
    requests: values.requests,
    collections: values.collections,
    only: values.only === undefined ? null : chosen(values.only.split(","), namesOf(store, values)),
    profile: values.profile ? (positionals[0] ?? "bench-profile") : null,
  };
}

/** Null: the bench is not asked to compare. */
export function readAgainst(argv: readonly string[]): AgainstOptions | null {
  const { values, positionals } = parseArgs({ args: [...argv], allowPositionals: true, options: OPTIONS });
  const { against: revision, store, only } = values;
  if (values.help || revision === undefined) return null;
  const other = (["limits", "profile", "no-peers", "batches", "requests", "collections"] as const).find(
    (name) => values[name],
  );
  if (other || positionals.length > 0)
    throw new Usage(`${other ? `--${other}` : positionals[0]} does not go with --against.\n${USAGE}`);
  return {
    revision,
    rounds: numberOf("rounds", values.rounds ?? String(ROUNDS), (value) => Number.isInteger(value) && value >= 1),
    limit: numberOf("limit", values.limit ?? String(LIMIT), (value) => value > 0),
    stores: store === undefined ? AGAINST_STORES : [storeOf(store)],
    names: only === undefined ? AGAINST_NAMES : (chosen(only.split(","), AGAINST_NAMES) as AgainstName[]),
    json: values.json,
    quick: values.quick,
    strict: values.strict,
  };
}

export class Usage extends Error {}

function storeOf(given: string): StoreName {
  const store = STORE_NAMES.find((name) => name === given);
  if (!store) throw new Usage(`There is no bench of the store ${given}; use ${STORE_NAMES.join(" or ")}.`);
  return store;
}

function numberOf(name: string, given: string, fits: (value: number) => boolean): number {
  const value = given.trim() === "" ? Number.NaN : Number(given);
  if (!Number.isFinite(value) || !fits(value)) throw new Usage(`--${name} can't be "${given}".\n${USAGE}`);
  return value;
}

/** `pickupSame` is as good as `pickupSameMs`, and `drainDeep` means its three. */
function chosen(asked: readonly string[], names: readonly string[]): string[] {
  return asked.flatMap((given) => {
    const found = names.filter(
      (name) =>
        name === given || name.replace(/M[sb]$/, "") === given || (given === "drainDeep" && name.startsWith(given)),
    );
    if (found.length === 0) throw new Usage(`There is no metric ${given}. There are: ${names.join(", ")}.`);
    return found;
  });
}
