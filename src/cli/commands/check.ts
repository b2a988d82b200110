// `outlive check`: the configuration and the store, nothing started. Prints every resolved value and where it came from.
import { glob } from "node:fs/promises";
import { resolve } from "node:path";
import { attach, canRepair, checkStore, isFile, repairStore } from "../../engine/open.ts";
import type { BlobStore } from "../../blobs.ts";
import { OutliveError } from "../../job/errors.ts";
import { humanMs } from "../../job/time.ts";
import type { IntegrityReport, Repair, Salvage } from "../../stores/store-parts.ts";
import { shownAddress } from "../../stores/registry.ts";
import type { Register } from "../main.ts";
import { ExitCode, type Terminal, wrap } from "../terminal.ts";
import { count, oneLine, stamp, thousands } from "../words.ts";

export const checkCommand: Register = (program, run) => {
  program
    .command("check")
    .description(
      "check the configuration and the store without starting anything: every setting, where it came from, warnings",
    )
    .option("--integrity", "also read the whole store and report damage; takes a while on a large file")
    .option(
      "--repair",
      "if the integrity check fails, repair what can be repaired without losing anything (SQLite, Redis); no worker may run",
    )
    .option("--yes", "with --repair: salvage what can't be repaired into a new file, and keep the damaged one (SQLite)")
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
          ...(loaded.engine.blobs === undefined ? [] : [await blobs(loaded.engine.blobs, engine.readOnly)]),
          ...(health?.findings ?? []),
          ...(loaded.engine.durability === "relaxed"
            ? [
                {
                  level: "warning",
                  text: "durability is relaxed: a power loss may lose the last acknowledged commits.",
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
            ...findings.flatMap(({ level, text }) =>
              wrap(text, terminal.isTty ? terminal.columns - 10 : Number.POSITIVE_INFINITY).map(
                (line, n) => `${n === 0 ? terminal.style(colour[level], level.padEnd(7)) : " ".repeat(7)}  ${line}`,
              ),
            ),
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
        text: `${count(files.length, "job module")}: ${files.slice(0, 5).join(", ")}${files.length > 5 ? ", ..." : ""}`,
      };
}

async function store(url: string, options: object): Promise<readonly Finding[]> {
  try {
    await using engine = await attach(url, { ...options, logger: false });
    const { summary, workers } = await engine.health();
    const live = workers.filter(({ state }) => state === "live").length;
    const opens = `${shownAddress(url)} opens: ${[...summary, count(live, "live worker")].join(", ")}.`;
    return [{ level: "ok", text: opens }, ...(await engine.operator.advice())];
  } catch (thrown) {
    if (!(thrown instanceof OutliveError)) throw thrown;
    return [{ level: isFresh(thrown) ? "warning" : "error", text: thrown.message }];
  }
}

/** Stores, reads and deletes a small blob; with --read-only nothing. */
async function blobs(given: string | BlobStore, readOnly: boolean): Promise<Finding> {
  try {
    // Loaded here: most commands need no adapter of a blob store.
    const { openBlobs } = await import("../../blobs.ts");
    const blobStore = openBlobs(given);
    if (readOnly) return { level: "ok", text: `blobs: ${blobStore.place} (not tried: --read-only).` };
    const { place, facts } = await blobStore.check();
    const known = Object.entries(facts).map(([name, value]) => `${name} ${value}`);
    return { level: "ok", text: `blobs: ${[`${place} stores, reads and deletes`, ...known].join(", ")}.` };
  } catch (thrown) {
    if (!(thrown instanceof OutliveError)) throw thrown;
    return { level: "error", text: `blobs: ${thrown.message}` };
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
    return {
      report,
      repaired,
      findings: repairFindings(report, repaired, { ofFile: isFile(url), mightSalvage: salvage }),
    };
  } catch (thrown) {
    if (!(thrown instanceof OutliveError)) throw thrown;
    // The check of the store itself reports it.
    if (isFresh(thrown)) return { report: null, repaired: null, findings: [] };
    return { report: null, repaired: null, findings: [{ level: "error", text: thrown.message }] };
  }
}

// `outlive backup FILE`: a copy of the store as it is at one moment, made while everything runs.

const PROGRESS_MS = 1_000;

export const backupCommand: Register = (program, run) => {
  program
    .command("backup <file>")
    .description("copy a SQLite store into a new file while workers run; complete, checked, readable by its owner only")
    .option("--force", "replace a file of that name")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [file] = command.args;
        const { force = false } = command.opts<{ force?: boolean }>();
        const engine = await attach();
        let printedAt = performance.now();
        const done = await engine.operator.backup(resolve(file!), {
          force,
          onProgress: ({ bytes, totalBytes }) => {
            if (performance.now() - printedAt < PROGRESS_MS) return;
            printedAt = performance.now();
            terminal.remark(`${thousands(bytes)} of at most ${thousands(totalBytes)} bytes`);
          },
        });
        terminal.answer(done, () =>
          [
            `${done.file}: ${thousands(done.bytes)} bytes in ${humanMs(done.tookMs)}, checked.`,
            "To restore it: stop all workers, move the old file with its -wal and -shm away, put this one in its place, then: outlive recover --restored",
          ].join("\n"),
        );
      }),
    );
};

// What people read about the store's health: the verdict of a check, what contradicts itself, what a repair did and lost.

interface Finding {
  readonly level: "ok" | "warning" | "error";
  readonly text: string;
}

const MAX_LISTED = 10;
const BACKUP = "Make a backup now: outlive backup FILE.";
const RESTORE = "keep a copy of the file, and restore a backup (then: outlive recover --restored)";
const REPAIR = `Stop all workers, then try: outlive check --repair. Or ${RESTORE}.`;
const ON_A_SERVER =
  "Some rows contradict each other. Each finding names a job, worker, kind or incident (outlive job ID, outlive workers --all). " +
  "If the server itself is damaged, use its own tools (amcheck, REINDEX) and its backups; after restoring one: outlive recover --restored.";

const LEFT_ON_A_SERVER =
  "The indexes were rebuilt, but some jobs are damaged: each finding names its job (outlive job ID). Restore a backup of the server, or cancel these jobs.";

function integrityFindings(
  report: IntegrityReport,
  { repairing, repairable }: { readonly repairing: boolean; readonly repairable: boolean },
): Finding[] {
  const { verdict, findings, tookMs, inconsistencies } = report;
  const took = humanMs(tookMs);
  if (verdict === "PASSED")
    return [
      { level: "ok", text: `integrity PASSED in ${took}${repairing ? ": there is nothing to repair" : ""}.` },
      ...inconsistencies.map(({ detail, names }): Finding => ({
        level: "warning",
        text: `${detail}: ${oneLine(names.slice(0, 5).join(", "), 200)}${names.length > 5 ? ", …" : ""}`,
      })),
    ];
  if (verdict === "UNFINISHED")
    return [{ level: "warning", text: `integrity UNFINISHED after ${took}: the rest was not checked.` }];
  const next = repairable ? REPAIR : `${repairing ? "--repair changes nothing on a server. " : ""}${ON_A_SERVER}`;
  return [
    { level: "error", text: `integrity FAILED with ${count(findings.length, "finding")} in ${took}. ${next}` },
    ...listed(findings),
  ];
}

function repairFindings(
  before: IntegrityReport,
  repair: Repair,
  { ofFile, mightSalvage }: { readonly ofFile: boolean; readonly mightSalvage: boolean },
): Finding[] {
  const found = `integrity FAILED with ${count(before.findings.length, "finding")}`;
  if (repair.salvage) return [...salvageFindings(found, repair.salvage), ...listed(repair.findings)];
  if (repair.sound)
    return [
      {
        level: "warning",
        text: `${found}; all were repaired (${repair.steps.map(({ step }) => step).join(", ")}) and nothing is lost.${ofFile ? ` ${BACKUP}` : ""}`,
      },
    ];
  if (!ofFile) return [{ level: "error", text: `${found}. ${LEFT_ON_A_SERVER}` }, ...listed(repair.findings)];
  const next = mightSalvage
    ? `It could not be repaired: ${RESTORE}.`
    : `It can't be repaired in place. What can still be read can be salvaged into a new file, with the damaged one kept: outlive check --repair --yes. Or ${RESTORE}.`;
  return [{ level: "error", text: `${found}. ${next}` }, ...listed(repair.findings)];
}

/** What a person must know after a salvage: up to when rows survived, what is lost, what to check. */
function salvageFindings(found: string, { keptAs, recoveryPointAt, tables, partial, lost }: Salvage): Finding[] {
  const point = recoveryPointAt === null ? "no change of a job survived" : stamp(recoveryPointAt);
  const gone = tables.filter((table) => table.lost !== 0);
  return [
    {
      level: "warning",
      text: `${found}; what could be read is in a new file in its place, and the damaged one is kept as ${keptAs}. ${BACKUP}`,
    },
    { level: "warning", text: `recovery point (the newest change that survived): ${point}` },
    ...gone.map(({ table, rows, lost: n }): Finding => ({
      level: "warning",
      text: `${table}: ${thousands(rows)} rows survived, ${n === null ? "an unknown number is" : `${thousands(n)} ${n === 1 ? "is" : "are"}`} lost`,
    })),
    ...named("lost", lost),
    ...named("partial: a part is missing; check each (outlive job ID)", partial),
  ];
}

function named(what: string, ids: readonly string[]): Finding[] {
  if (ids.length === 0) return [];
  const some = ids.slice(0, MAX_LISTED).join(", ");
  const more = ids.length > MAX_LISTED ? `, and ${thousands(ids.length - MAX_LISTED)} more (--json lists them)` : "";
  return [{ level: "warning", text: `${count(ids.length, "job")} ${what}: ${some}${more}` }];
}

function listed(findings: readonly string[]): Finding[] {
  return findings.slice(0, MAX_LISTED).map((text) => ({ level: "error", text: `  ${text}` }));
}
