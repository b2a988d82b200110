// The command line of the demo: read once, checked once, with an error that says what is possible.
import { parseArgs } from "node:util";

export interface DemoOptions {
  readonly store: "sqlite";
  /** Transfers to make; the poison job comes on top. */
  readonly jobs: number;
  readonly workers: number;
  /** About how long the whole takes. */
  readonly seconds: number;
  readonly seed: number;
  readonly json: boolean;
  readonly keep: boolean;
}

export class UsageError extends Error {}

const STORES = ["sqlite"];

export const USAGE = `npm run demo -- [options]

  --jobs N       transfers to make              default 5000, from 100 to 200000
  --workers N    worker processes               default 4, from 2 to 16
  --seconds N    about how long it takes        default 20, from 5 to 600
  --seed N       of the jobs and of the nemesis default: a new one each time
  --store NAME   ${STORES.join(", ")}                         default sqlite
  --json         one line of JSON on stdout, progress on stderr
  --keep         keep the database and say where it is
  --help`;

/** Null: help was asked for. */
export function readOptions(argv: readonly string[]): DemoOptions | null {
  const values = parse(argv);
  if (values.help) return null;
  if (!STORES.includes(values.store))
    throw new UsageError(`There is no demo on the store "${values.store}". There is: ${STORES.join(", ")}.`);
  return {
    store: "sqlite",
    jobs: whole("jobs", values.jobs, 100, 200_000),
    workers: whole("workers", values.workers, 2, 16),
    seconds: whole("seconds", values.seconds, 5, 600),
    seed: values.seed === undefined ? Math.floor(Math.random() * 1e6) : whole("seed", values.seed, 0, 2 ** 31),
    json: values.json,
    keep: values.keep,
  };
}

function parse(argv: readonly string[]) {
  try {
    return parseArgs({
      args: [...argv],
      options: {
        jobs: { type: "string", default: "5000" },
        workers: { type: "string", default: "4" },
        seconds: { type: "string", default: "20" },
        seed: { type: "string" },
        store: { type: "string", default: "sqlite" },
        json: { type: "boolean", default: false },
        keep: { type: "boolean", default: false },
        help: { type: "boolean", default: false },
      },
    }).values;
  } catch (thrown) {
    throw new UsageError((thrown as Error).message);
  }
}

function whole(name: string, text: string, least: number, most: number): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= least && value <= most) return value;
  throw new UsageError(`--${name} is "${text}"; it takes a whole number from ${least} to ${most}.`);
}
