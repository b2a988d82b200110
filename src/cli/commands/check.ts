// `outlive check`: the configuration and the store, nothing started. Prints every resolved value and where it came from.
import { glob } from "node:fs/promises";
import { OutliveError } from "../../core/errors.ts";
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
    .action(
      run(async ({ terminal, config }) => {
        const loaded = await config();
        const findings: Finding[] = [
          ...loaded.warnings.map((text): Finding => ({ level: "warning", text })),
          await jobModules(loaded.jobs),
          await store(loaded.store, loaded.engine),
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

async function store(url: string, options: object): Promise<Finding> {
  try {
    await using engine = await attach(url, { ...options, logger: false });
    const { store: detail, workers } = await engine.health();
    const live = workers.filter(({ state }) => state === "live").length;
    return {
      level: "ok",
      text: `${url} opens: ${detail["bytes"]} bytes, ${detail["durability"]} durability, ${live} live worker(s).`,
    };
  } catch (thrown) {
    if (!(thrown instanceof OutliveError)) throw thrown;
    const fresh = thrown.code === "STORE_UNUSABLE" && thrown.message.startsWith("There is no file");
    return fresh ? { level: "warning", text: `${thrown.message}` } : { level: "error", text: thrown.message };
  }
}
