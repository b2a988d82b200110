// `outlive limit NAME KEY`: gives one key of a limit a limit or a weight of its own while everything works, pauses it, or takes both away again.
// `outlive limits`: the keys that have something of their own.
import { InvalidArgumentError } from "commander";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { type KeyState, MAX_WEIGHT } from "../../job/limits.ts";
import { humanMs } from "../../job/time.ts";
import { byOf, duration, wholeNumber, withBy } from "../context.ts";
import { shellWord } from "../../job/text.ts";
import type { Register } from "../main.ts";
import { type Column, grid, type Pen } from "../terminal.ts";
import { oneLine, thousands } from "../words.ts";

interface Flags {
  readonly running?: number;
  readonly rate?: number;
  readonly per?: number;
  readonly burst?: number;
  readonly weight?: number;
  readonly pause?: string;
  readonly for?: number;
  readonly resume?: boolean;
  readonly reset?: boolean;
}

export const limitCommand: Register = (program, run) => {
  withBy(program.command("limit"))
    .argument("<name>", "the name of the limit")
    .argument("<key>", "the key; * if the limit has no keys")
    .description("give one key its own limit; running jobs continue")
    .option("--running <number>", "how many jobs of the key may run at once", wholeNumber(1, 1_000_000))
    .option("--rate <number>", "how many jobs of the key may start in each --per", rate)
    .option("--per <duration>", "the period of --rate (default 1s)", duration)
    .option("--burst <number>", "how many may start at once after an idle time (default 1)", wholeNumber(1, 1_000_000))
    .option(
      "--weight <number>",
      "how many of its jobs start in each round of a fair kind (default 1)",
      wholeNumber(1, MAX_WEIGHT),
    )
    .option("--pause <reason>", "start no more jobs of the key")
    .option("--for <duration>", "how long it is paused (default: until --resume)", duration)
    .option("--resume", "start jobs of the key again")
    .option("--reset", "restore the declared limit of the key")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [limit, key] = command.args as [string, string];
        const flags = command.opts<Flags>();
        assertComplete(flags);
        const { limits } = await attach();
        if (flags.pause !== undefined || flags.resume === true) {
          if (flags.pause === undefined) await limits.resume(limit, key, byOf(command));
          else
            await limits.pause(limit, key, {
              reason: flags.pause,
              actor: byOf(command).actor,
              ...(flags.for !== undefined && { for: `${flags.for}ms` as const }),
            });
          const { paused } = await limits.get(limit, key);
          terminal.answer({ limit, key, paused }, () => pausedText(limit, key, flags));
          return;
        }
        const { running, rate: starts, per = 1_000, burst, weight } = flags;
        const own =
          flags.reset === true
            ? null
            : {
                ...(running !== undefined && { running }),
                ...(starts !== undefined && { rate: starts, per: `${per}ms` as const }),
                ...(burst !== undefined && { burst }),
                ...(weight !== undefined && { weight }),
              };
        await limits.set(limit, key, own, byOf(command));
        const perMs = starts === undefined ? null : per;
        const answer = own && {
          running: running ?? null,
          rate: starts ?? null,
          perMs,
          burst: burst ?? null,
          weight: weight ?? null,
        };
        terminal.answer({ limit, key, own: answer }, () =>
          own === null
            ? `The key ${key} of the limit ${limit} has its declared limit again.`
            : `The key ${key} of the limit ${limit} may now ${ownText(flags, per)}.`,
        );
      }),
    );
};

export const limitsCommand: Register = (program, run) => {
  program
    .command("limits")
    .argument("[name]", "the name of one limit")
    .description("list the keys that have a limit, a weight, a pause or a hold-off of their own")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [limit] = command.args as [string?];
        const keys = await (await attach()).limits.list(limit);
        terminal.answer({ keys }, () => limitLines(keys, terminal, Date.now()));
      }),
    );
};

/** One line for each key. */
export function limitLines(keys: readonly KeyState[], pen: Pen, now: number): string {
  if (keys.length === 0) return "No key has its own limit, weight or pause.";
  const columns: readonly Column[] = [
    { title: "LIMIT" },
    { title: "KEY", shrinkTo: 16 },
    { title: "TAKEN", align: "right" },
    { title: "HELD", align: "right" },
    { title: "ITS OWN", shrinkTo: 20 },
  ];
  return grid(
    pen,
    columns,
    keys.map((key) => [
      key.limit,
      oneLine(key.key),
      thousands(key.taken),
      thousands(key.held),
      oneLine(stateText(key, now)),
    ]),
  ).join("\n");
}

function stateText({ own, paused, heldOffUntil }: KeyState, now: number): string {
  const { running, intervalMs, burst, weight } = own;
  const end = paused?.until === null || paused === null ? "" : `, ${humanMs(Math.max(0, paused.until - now))} more`;
  return [
    ...(paused === null ? [] : [`paused: ${paused.reason}${end}`]),
    ...(heldOffUntil === null ? [] : [`held off, ${humanMs(Math.max(0, heldOffUntil - now))} more`]),
    ...(running === undefined || running === null ? [] : [`runs ${running} at once`]),
    ...(intervalMs === undefined || intervalMs === null ? [] : [`starts one every ${humanMs(intervalMs)}`]),
    ...(burst === undefined ? [] : [`burst ${burst}`]),
    ...(weight === undefined ? [] : [`weight ${weight}`]),
  ].join("; ");
}

function pausedText(limit: string, key: string, { pause, for: forMs }: Flags): string {
  const name = `The key ${key} of the limit ${limit}`;
  if (pause === undefined) return `${name} starts jobs again.`;
  const end =
    forMs === undefined
      ? `Start it again: outlive limit ${shellWord(limit)} ${shellWord(key)} --resume`
      : `It continues in ${humanMs(forMs)}.`;
  return `${name} is paused; running jobs continue. ${end}`;
}

function ownText({ running, rate: starts, burst, weight }: Flags, per: number): string {
  const parts = [
    ...(running === undefined ? [] : [`run ${running} at once`]),
    ...(starts === undefined ? [] : [`start ${starts} every ${humanMs(per)}`]),
    ...(weight === undefined ? [] : [`take ${weight} of each round`]),
  ];
  return `${parts.join(" and ")}${burst === undefined ? "" : `, ${burst} at once after an idle time`}`;
}

/** What is set replaces all that the key had of its own, so a part of a rate alone would not mean what it seems to. */
function assertComplete({ running, rate: starts, per, burst, weight, pause, for: forMs, resume, reset }: Flags): void {
  const any = running !== undefined || starts !== undefined || weight !== undefined;
  const pauses = pause !== undefined || resume === true;
  const wrong =
    pauses && (any || per !== undefined || burst !== undefined || reset === true)
      ? "--pause and --resume were given together with a limit."
      : pause !== undefined && resume === true
        ? "--pause and --resume were given together."
        : forMs !== undefined && pause === undefined
          ? "--for belongs to --pause, which is missing."
          : pauses
            ? null
            : reset === true && (any || per !== undefined || burst !== undefined)
              ? "--reset was given together with a limit."
              : starts === undefined && (per !== undefined || burst !== undefined)
                ? "--per and --burst belong to --rate, which is missing."
                : reset !== true && !any
                  ? "No limit was given."
                  : null;
  if (wrong === null) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    wrong,
    "Nothing was changed. Give --running N, --rate N [--per 1m] [--burst N] or --weight N, or several; or --pause REASON [--for 1h], --resume or --reset alone.",
  );
}

function rate(text: string): number {
  const value = Number(text);
  if (!/^\d+(\.\d+)?$/.test(text) || value <= 0) throw new InvalidArgumentError("Use a number above 0.");
  return value;
}
