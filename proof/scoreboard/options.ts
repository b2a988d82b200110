// The command line of the scoreboard, read once.
import { parseArgs } from "node:util";
import { contenders } from "./contenders.ts";
import { experiments } from "./experiments/index.ts";

export interface Options {
  /** A results file to make the document of, without measuring; null: measure. */
  readonly render: string | null;
  readonly results: string;
  readonly quick: boolean;
  readonly experiments: readonly string[];
  readonly contenders: readonly string[];
}

export class Usage extends Error {}

export const USAGE = `npm run scoreboard -- [options]
  --render FILE       makes docs/scoreboard.md and its pictures from a results file, and measures nothing
  --results FILE      where the raw results go (default docs/scoreboard/results.json, with --quick scoreboard-results.json); cells that are
                      there and not measured again stay
  --only a,b          these experiments only: ${experiments.map(({ name }) => name).join(", ")}
  --contenders a,b    these contenders only: ${contenders.map(({ id }) => id).join(", ")}
  --quick             small counts, to see whether it works; writes no document`;

export function readOptions(argv: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...argv],
    options: {
      render: { type: "string" },
      results: { type: "string" },
      only: { type: "string" },
      contenders: { type: "string" },
      quick: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) throw new Usage(USAGE);
  return {
    render: values.render ?? null,
    // A quick run never replaces the results that the committed page was made of.
    results: values.results ?? (values.quick ? "scoreboard-results.json" : "docs/scoreboard/results.json"),
    quick: values.quick,
    experiments: chosen(
      values.only,
      experiments.map(({ name }) => name),
    ),
    contenders: chosen(
      values.contenders,
      contenders.map(({ id }) => id),
    ),
  };
}

/** Whether nothing is left to an earlier run. */
export function isWhole(options: Pick<Options, "experiments" | "contenders">): boolean {
  return options.experiments.length === experiments.length && options.contenders.length === contenders.length;
}

function chosen(asked: string | undefined, names: readonly string[]): readonly string[] {
  if (asked === undefined) return names;
  const wanted = asked.split(",");
  const unknown = wanted.find((name) => !names.includes(name));
  if (unknown !== undefined) throw new Usage(`There is no ${unknown}. There are: ${names.join(", ")}.`);
  return wanted;
}
