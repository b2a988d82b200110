// `outlive check`: the configuration and the store, nothing started. Prints every resolved value and where it came from.
import { glob } from "node:fs/promises";
import { resolve } from "node:path";
import { canRepair, checkStore, repairStore } from "../../engine/doctor.ts";
import { attach } from "../../engine/open.ts";
import { OutliveError } from "../../job/errors.ts";
import { humanMs } from "../../job/time.ts";
import type { IntegrityReport, Repair } from "../../stores/integrity.ts";
import { shownAddress } from "../../stores/registry.ts";
import { ExitCode } from "../exit-codes.ts";
import type { Register } from "../main.ts";
import type { Terminal } from "../terminal.ts";
import { type Finding, integrityFindings, repairFindings } from "../views/integrity.ts";
import { thousands } from "../words.ts";

export const checkCommand: Register = (program, run) => {
  program
    .command("check")
    .description(
      "the configuration and the store, with nothing started: resolved values, where each came from, warnings",
    )
    .option("--integrity", "also read the whole store and say what is wrong with it; takes a while on a large file")
    .option(
      "--repair",
      "if the integrity check of a file fails, repair what can be repaired without losing anything; no worker may live",
    )
    .option("--yes", "with --repair: what can't be repaired is salvaged into a new file; the damaged one is kept")
    .action(
      run(async ({ terminal, options, config, mayChange }, command) => {
        const { integrity, repair, yes } = command.opts<{ integrity?: boolean; repair?: boolean; yes?: boolean }>();
        if (repair === true) mayChange("repair the store");
        const loaded = await config();
        const engine = { ...loaded.engine, readOnly: options.readOnly === true };
        // Before the store is opened: it may be too damaged for that.
        const health =
          integrity === true || repair === true
            ? await examine(terminal, loaded.store, engine, repair === true, yes === true)
            : null;
        const findings: Finding[] = [
          ...loaded.warnings.map((text): Finding => ({ level: "warning", text })),
          await jobModules(loaded.jobs),
          ...(await store(loaded.store, engine)),
          ...(health?.findings ?? []),
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
        const { report = null, repaired = null } = health ?? {};
        const more = { ...(report && { integrity: report }), ...(repaired && { repair: repaired }) };
        terminal.answer({ ok, file: loaded.file, values: loaded.values, findings, ...more }, () => {
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

async function store(url: string, options: object): Promise<readonly Finding[]> {
  try {
    await using engine = await attach(url, { ...options, logger: false });
    const { store: detail, workers } = await engine.health();
    const live = workers.filter(({ state }) => state === "live").length;
    const what =
      "bytes" in detail ? `${detail["bytes"]} bytes, ${detail["durability"]} durability` : `schema ${detail["schema"]}`;
    const opens = `${shownAddress(url)} opens: ${what}, ${live} live worker(s).`;
    return [{ level: "ok", text: opens }, ...(await engine.operator.advice())];
  } catch (thrown) {
    if (!(thrown instanceof OutliveError)) throw thrown;
    return [{ level: isFresh(thrown) ? "warning" : "error", text: thrown.message }];
  }
}

function isFresh({ code, message }: OutliveError): boolean {
  return code === "STORE_UNUSABLE" && message.startsWith("There is no file");
}

interface Health {
  readonly report: IntegrityReport | null;
  readonly repaired: Repair | null;
  readonly findings: readonly Finding[];
}

/** The check, and the repair if something is damaged. Each step is printed when it is done: the next may take minutes. */
async function examine(
  terminal: Terminal,
  url: string,
  options: object,
  repair: boolean,
  salvage: boolean,
): Promise<Health> {
  try {
    const report = await checkStore(url, options);
    const repairable = canRepair(url);
    if (report.verdict === "PASSED" || !repair || !repairable)
      return { report, repaired: null, findings: integrityFindings(report, { repairing: repair, repairable }) };
    terminal.remark(`integrity ${report.verdict}: repairing ${shownAddress(url)}`);
    const repaired = await repairStore(url, {
      salvage,
      onStep: ({ step, ok, detail }) => terminal.remark(`${step}: ${ok ? "" : "did not help: "}${detail}`),
      onProgress: terminal.isTty ? (what) => terminal.remark(`salvage: ${what}`) : () => {},
    });
    return { report, repaired, findings: repairFindings(report, repaired, salvage) };
  } catch (thrown) {
    if (!(thrown instanceof OutliveError)) throw thrown;
    // The check of the store itself reports it.
    if (isFresh(thrown)) return { report: null, repaired: null, findings: [] };
    return { report: null, repaired: null, findings: [{ level: "error", text: thrown.message }] };
  }
}

// `outlive backup FILE`: a copy of the store as it is at one moment, made while everything runs.

const TELL_MS = 1_000;

export const backupCommand: Register = (program, run) => {
  program
    .command("backup <file>")
    .description("copy the store into a new file while workers go on; checked, complete, and for its owner only")
    .option("--force", "replace a file of that name")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [file] = command.args;
        const { force = false } = command.opts<{ force?: boolean }>();
        const engine = await attach();
        let toldAt = performance.now();
        const done = await engine.operator.backup(resolve(file!), {
          force,
          onProgress: ({ bytes, totalBytes }) => {
            if (performance.now() - toldAt < TELL_MS) return;
            toldAt = performance.now();
            terminal.remark(`${thousands(bytes)} of at most ${thousands(totalBytes)} bytes`);
          },
        });
        terminal.answer(done, () =>
          [
            `${done.file}: ${thousands(done.bytes)} bytes in ${humanMs(done.tookMs)}, checked.`,
            "To put it back: stop all workers, move the old file with its -wal and -shm away, put this one in its place, then: outlive recover --restored",
          ].join("\n"),
        );
      }),
    );
};
