// `outlive enqueue KIND JSON`: one job, by the name of its kind.
import { text } from "node:stream/consumers";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { instant, wholeNumber } from "../flags.ts";
import type { Duration } from "../../core/duration.ts";
import type { Register } from "../main.ts";
import { noSuchKind } from "../not-found.ts";
import { printable } from "../terminal.ts";
import { cut } from "../words.ts";

interface Flags {
  readonly priority?: number;
  readonly delay?: Duration;
  readonly runAt?: Date;
  readonly dedupeKey?: string;
  readonly id?: string;
}

export const register: Register = (program, run) => {
  program
    .command("enqueue")
    .argument("<kind>", "the kind of the job")
    .argument("<json>", "its input as JSON, or - to read it from stdin")
    .description("add a job; its id is the answer")
    .option("--priority <number>", "higher runs first (default 0)", wholeNumber(-1_000_000, 1_000_000))
    .option("--delay <duration>", 'run it that much later: "30s", "5m"')
    .option("--run-at <instant>", "run it at this instant of ISO 8601", instant)
    .option("--dedupe-key <key>", "add nothing while an unfinished job of the kind holds this key")
    .option("--id <id>", "your own id: enqueueing it again adds nothing")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [kind, given] = command.args as [string, string];
        const input = parseInput(given === "-" ? await text(process.stdin) : given);
        const flags = command.opts<Flags>();
        const engine = await attach();
        const enqueued = await engine.enqueueByName(kind, input, flags).catch(async (thrown: unknown) => {
          if (thrown instanceof OutliveError && thrown.code === ErrorCode.kindUnknown)
            throw noSuchKind(
              kind,
              (await engine.counts()).map((counts) => counts.kind),
            );
          throw thrown;
        });
        terminal.answer(enqueued, () =>
          enqueued.created
            ? enqueued.id
            : `${enqueued.id}\nNothing was added: this job holds the ${flags.dedupeKey === undefined ? "id" : "id or dedupe key"} already. See it: outlive job ${enqueued.id}`,
        );
      }),
    );
};

/** Invalid JSON is a usage error that shows where. */
export function parseInput(given: string): unknown {
  try {
    return JSON.parse(given);
  } catch (thrown) {
    const message = (thrown as Error).message.replace(/ in JSON at position.*$/s, "").replace(/, ("|\.\.\.).*$/s, "");
    const position = /at position (\d+)/.exec((thrown as Error).message)?.[1];
    const at = position === undefined ? given.length : Number(position);
    const lines = given.slice(0, at).split("\n");
    const line = given.split("\n")[lines.length - 1] ?? "";
    const column = lines.at(-1)!.length;
    const from = Math.max(0, column - 40);
    const shown = cut(printable(line.slice(from)), 78);
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The input is not JSON: ${message} at line ${lines.length}, column ${column + 1}:\n  ${shown}\n  ${" ".repeat(column - from)}^\n`,
      `Quote it for the shell, for instance '{"to":"a@b.c"}', or pipe it in: outlive enqueue KIND - < input.json`,
      { line: lines.length, column: column + 1 },
    );
  }
}
