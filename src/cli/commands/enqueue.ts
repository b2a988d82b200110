// `outlive enqueue KIND JSON`: one job, by the name of its kind.
import { text } from "node:stream/consumers";
import { MAX_PRIORITY } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Duration } from "../../job/time.ts";
import { instant, wholeNumber } from "../context.ts";
import { noSuchKind } from "../lookup.ts";
import type { Register } from "../main.ts";
import { printable } from "../words.ts";

interface Flags {
  readonly priority?: number;
  readonly delay?: Duration;
  readonly runAt?: Date;
  readonly dedupeKey?: string;
  readonly id?: string;
}

export const enqueueCommand: Register = (program, run) => {
  program
    .command("enqueue")
    .argument("<kind>", "the kind of the job")
    .argument("<json>", "its input as JSON, or - to read it from stdin")
    .description("add a job; its id is the answer")
    .option("--priority <number>", "higher runs first (default 0)", wholeNumber(-MAX_PRIORITY, MAX_PRIORITY))
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
        const enqueued = await engine.operator.enqueueByName(kind, input, flags).catch(async (thrown: unknown) => {
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
function parseInput(given: string): unknown {
  try {
    return JSON.parse(given);
  } catch (thrown) {
    const at = jsonFault(given) ?? given.length;
    const before = given.slice(0, at).split("\n");
    const column = before.at(-1)!.length;
    const from = Math.max(0, column - 60);
    const line = given.split("\n")[before.length - 1]!.slice(from, column + 20);
    const place = `line ${before.length}, column ${column + 1}`;
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The input is not JSON at ${place}:\n  ${printable(line).replaceAll("\t", " ")}\n  ${" ".repeat(column - from)}^\n`,
      `Quote it for the shell, for instance '{"to":"a@b.c"}', or pipe it in: outlive enqueue KIND - < input.json`,
      { line: before.length, column: column + 1 },
      { cause: thrown },
    );
  }
}

// Where a text stops being JSON. The runtime's own message has no position for most faults.

const SPACE = /[ \t\n\r]*/uy;
const SCALAR =
  /"(?:[ !#-[\]-\u{10ffff}]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|(?:true|false|null)(?!\w)/uy;
/** What of a broken text is fine: to point behind it, not at its first quote. */
const PART_OF_STRING = /"(?:[ !#-[\]-\u{10ffff}]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*/uy;

/** The index of the first character that can't be there (the length: something is missing at the end); null: it is JSON. */
export function jsonFault(text: string): number | null {
  let at = 0;
  const eat = (pattern: RegExp): boolean => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found !== null;
  };
  const next = (): string => {
    eat(SPACE);
    return text[at] ?? "";
  };
  const scalar = (string: boolean): boolean => {
    const quoted = next() === '"';
    if ((quoted || !string) && eat(SCALAR)) return true;
    if (quoted) eat(PART_OF_STRING);
    return false;
  };
  const member = (close: string): boolean => {
    if (close === "]") return value();
    if (!scalar(true) || next() !== ":") return false;
    at++;
    return value();
  };
  const value = (): boolean => {
    const close = { "{": "}", "[": "]" }[next()];
    if (close === undefined) return scalar(false);
    at++;
    if (next() === close) {
      at++;
      return true;
    }
    for (;;) {
      if (!member(close)) return false;
      const sign = next();
      if (sign !== "," && sign !== close) return false;
      at++;
      if (sign === close) return true;
    }
  };
  return value() && next() === "" ? null : at;
}
