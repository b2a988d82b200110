// `outlive check`: the configuration and the store, nothing started. Prints every resolved value and where it came from.
import { glob } from "node:fs/promises";
import { shownAddress } from "../../backends.ts";
import { OutliveError } from "../../core/errors.ts";
import { humanMs } from "../../core/duration.ts";
import type { Engine } from "../../engine.ts";
import { attach } from "../../open.ts";
import { ExitCode } from "../exit-codes.ts";
import type { Register } from "../main.ts";

interface Finding {
  readonly level: "ok" | "warning" | "error";
  readonly text: string;
}

export const register: Register = (program, run) => {
  program
    .command("check")
    .description(
      "the configuration and the store, with nothing started: resolved values, where each came from, warnings",
    )
    .option("--integrity", "also read the whole store and say what is wrong with it; takes a while on a large file")
    .option(
      "--repair",
      "if the integrity check fails, mend what can be mended without losing anything; no worker may live",
    )
    .action(
      run(async ({ terminal, config }, command) => {
        const { integrity, repair } = command.opts<{ integrity?: boolean; repair?: boolean }>();
        const depth = repair === true ? "repair" : integrity === true ? "integrity" : "open";
        const loaded = await config();
        const findings: Finding[] = [
          ...loaded.warnings.map((text): Finding => ({ level: "warning", text })),
          await jobModules(loaded.jobs),
          ...(await store(loaded.store, loaded.engine, depth)),
          ...(loaded.engine.durability === "relaxed"
            ? [
                {
                  level: "warning",
                  text: "durability is relaxed: a power loss may take the last acknowledged commits with it.",
                } as const,
              ]
            : []),
        ];
        const ok = findings.every(({ level }) => level !== "error");
        terminal.answer({ ok, file: loaded.file, values: loaded.values, findings }, () => {
          const rows = loaded.values.map(({ key, value, source }) => [key, shown(value), source]);
          const colour = { ok: "green", warning: "yellow", error: "red" } as const;
          return [
            terminal.table(["setting", "value", "from"], rows),
            "",
            ...findings.map(({ level, text }) => `${terminal.style(colour[level], level.padEnd(7))}  ${text}`),
          ].join("\n");
        });
        return ok ? ExitCode.ok : ExitCode.failure;
      }),
    );
};

function shown(value: unknown): string {
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value !== "object" || value === null) return String(value);
  return Object.entries(value)
    .map(([key, member]) => `${key}=${String(member)}`)
    .join(",");
}

async function jobModules(globs: readonly string[]): Promise<Finding> {
  const files: string[] = [];
  for await (const file of glob([...globs])) files.push(file);
  return files.length === 0
    ? { level: "warning", text: `No file matches ${globs.join(", ")}: a worker would have nothing to run.` }
    : {
        level: "ok",
        text: `${files.length} job module(s): ${files.slice(0, 5).join(", ")}${files.length > 5 ? ", ..." : ""}`,
      };
}

async function store(url: string, options: object, depth: "open" | "integrity" | "repair"): Promise<Finding[]> {
  try {
    await using engine = await attach(url, { ...options, logger: false });
    const { store: detail, workers } = await engine.health();
    const live = workers.filter(({ state }) => state === "live").length;
    const what =
      "bytes" in detail ? `${detail["bytes"]} bytes, ${detail["durability"]} durability` : `schema ${detail["schema"]}`;
    const opens = `${shownAddress(url)} opens: ${what}, ${live} live worker(s).`;
    return [
      { level: "ok", text: opens },
      ...(await engine.advice()),
      ...(depth === "open" ? [] : await integrityOf(engine, depth === "repair")),
    ];
  } catch (thrown) {
    if (!(thrown instanceof OutliveError)) throw thrown;
    const fresh = thrown.code === "STORE_UNUSABLE" && thrown.message.startsWith("There is no file");
    return [{ level: fresh ? "warning" : "error", text: thrown.message }];
  }
}

async function integrityOf(engine: Engine, repair: boolean): Promise<Finding[]> {
  const started = performance.now();
  const found = await engine.integrity();
  if (found.length === 0)
    return [{ level: "ok", text: `integrity PASSED in ${humanMs(performance.now() - started)}.` }];
  const left = repair ? await engine.repair() : found;
  const took = humanMs(performance.now() - started);
  if (left.length === 0)
    return [
      {
        level: "warning",
        text: `integrity FAILED with ${found.length} finding(s); all were repaired in ${took}. Make a backup now.`,
      },
    ];
  const advice = `${repair ? "It could not be repaired in place. " : "Try: outlive check --repair. "}Stop all workers, keep a copy of the file, and put a backup back (then: outlive recover --restored).`;
  return [
    { level: "error", text: `integrity FAILED with ${left.length} finding(s) in ${took}. ${advice}` },
    ...left.slice(0, 10).map((text): Finding => ({ level: "error", text: `  ${text}` })),
  ];
}
