// `outlive limit NAME KEY`: gives one key of a limit a limit of its own while everything works, or takes it away again.
import { InvalidArgumentError } from "commander";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { humanMs } from "../../job/time.ts";
import { duration, wholeNumber } from "../context.ts";
import type { Register } from "../main.ts";

interface Flags {
  readonly running?: number;
  readonly rate?: number;
  readonly per?: number;
  readonly burst?: number;
  readonly reset?: boolean;
}

export const limitCommand: Register = (program, run) => {
  program
    .command("limit")
    .argument("<name>", "the name of the limit")
    .argument("<key>", "the key; * if the limit has no keys")
    .description("give one key of a limit a limit of its own; what runs goes on")
    .option("--running <number>", "how many jobs of the key may run at once", wholeNumber(1, 1_000_000))
    .option("--rate <number>", "how many jobs of the key may start in each --per", rate)
    .option("--per <duration>", "the period of --rate (default 1s)", duration)
    .option("--burst <number>", "how many may start at once after a pause (default 1)", wholeNumber(1, 1_000_000))
    .option("--reset", "the key has the limit as it was declared again")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [limit, key] = command.args as [string, string];
        const flags = command.opts<Flags>();
        assertComplete(flags);
        const { running, rate: starts, per = 1_000, burst } = flags;
        const own =
          flags.reset === true
            ? null
            : {
                ...(running !== undefined && { running }),
                ...(starts !== undefined && { rate: starts, per: `${per}ms` as const }),
                ...(burst !== undefined && { burst }),
              };
        await (await attach()).limits.set(limit, key, own);
        const perMs = starts === undefined ? null : per;
        const answer = own && { running: running ?? null, rate: starts ?? null, perMs, burst: burst ?? null };
        terminal.answer({ limit, key, own: answer }, () =>
          own === null
            ? `The key ${key} of the limit ${limit} has the limit as it was declared again.`
            : `The key ${key} of the limit ${limit} may now ${ownText(flags, per)}.`,
        );
      }),
    );
};

function ownText({ running, rate: starts, burst }: Flags, per: number): string {
  const parts = [
    ...(running === undefined ? [] : [`run ${running} at once`]),
    ...(starts === undefined ? [] : [`start ${starts} every ${humanMs(per)}`]),
  ];
  return `${parts.join(" and ")}${burst === undefined ? "" : `, ${burst} at once after a pause`}`;
}

/** What is set replaces all that the key had of its own, so a part of a rate alone would not mean what it seems to. */
function assertComplete({ running, rate: starts, per, burst, reset }: Flags): void {
  const any = running !== undefined || starts !== undefined;
  const wrong =
    reset === true && (any || per !== undefined || burst !== undefined)
      ? "--reset was given together with a limit."
      : starts === undefined && (per !== undefined || burst !== undefined)
        ? "--per and --burst belong to --rate, which is missing."
        : reset !== true && !any
          ? "Nothing says what the key may do."
          : null;
  if (wrong === null) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    wrong,
    "Nothing was changed. Give --running N, or --rate N [--per 1m] [--burst N], or both; or --reset alone.",
  );
}

function rate(text: string): number {
  const value = Number(text);
  if (!/^\d+(\.\d+)?$/.test(text) || value <= 0) throw new InvalidArgumentError("Use a number above 0.");
  return value;
}
