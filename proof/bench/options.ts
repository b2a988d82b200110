// The command line of the bench, read once. What is wrong is said in one sentence, before anything runs.
import { parseArgs } from "node:util";
import { STORE_NAMES, type StoreName } from "./stores/tested-store.ts";

export interface Options {
  readonly store: StoreName;
  readonly json: boolean;
  readonly quick: boolean;
  readonly strict: boolean;
  /** Whether a limit that is not kept is an exit code. */
  readonly limits: boolean;
  /** Whether other engines are measured beside us, where the store has such. */
  readonly peers: boolean;
  /** The metrics to run; null: all. */
  readonly only: readonly string[] | null;
  /** The folder of the drain's CPU profiles; null: none. */
  readonly profile: string | null;
}

export const USAGE = `npm run bench -- [options]
  --json            one last line of JSON instead of the table
  --quick           small counts, under a minute
  --only a,b        these metrics only; drainDeep stands for its three
  --strict          exit 1 if a target is missed
  --limits          exit 1 if a limit is not kept: what must hold on any machine, however busy
  --profile [dir]   CPU profiles of the drain's worker into dir (default ./bench-profile)
  --store name      sqlite (the default) or postgres, on a server that the bench starts
  --no-peers        PostgreSQL: without the engines beside us, which are installed into proof/bench/node_modules otherwise`;

export function readOptions(argv: readonly string[], namesOf: (store: StoreName) => readonly string[]): Options {
  const { values, positionals } = parseArgs({
    args: [...argv],
    allowPositionals: true,
    options: {
      store: { type: "string", default: "sqlite" },
      json: { type: "boolean", default: false },
      quick: { type: "boolean", default: false },
      strict: { type: "boolean", default: false },
      limits: { type: "boolean", default: false },
      only: { type: "string" },
      profile: { type: "boolean", default: false },
      "no-peers": { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) throw new Usage(USAGE);
  const store = STORE_NAMES.find((name) => name === values.store);
  if (!store) throw new Usage(`There is no bench of the store ${values.store}; use ${STORE_NAMES.join(" or ")}.`);
  if (positionals.length > (values.profile ? 1 : 0))
    throw new Usage(`${positionals.at(-1)} is not an option.\n${USAGE}`);
  return {
    store,
    peers: !values["no-peers"],
    json: values.json,
    quick: values.quick,
    strict: values.strict,
    limits: values.limits,
    only: values.only === undefined ? null : chosen(values.only.split(","), namesOf(store)),
    profile: values.profile ? (positionals[0] ?? "bench-profile") : null,
  };
}

export class Usage extends Error {}

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
