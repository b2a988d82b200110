// `npm run regressions`: runs test/regressions and prints one line per test. With `--at REV` it runs the same tests against the sources of an
// older commit, where each of them must fail by its assertion: a test that passes there, or can't run there, shows nothing.
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { CheckoutError, commitOf, providePackages } from "../checkout.ts";
import { checkOutWithTests } from "./older-tree.ts";
import type { ReportLine } from "./reporter.ts";
import { caseName, casesThat, type Result, resultsOf, type TestFile } from "./results.ts";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const REPORTER = fileURLToPath(new URL("./reporter.ts", import.meta.url));
const FOLDER = "test/regressions";
const USAGE = `Usage: npm run regressions -- [--at REV] [--only C5,C7] [--json]

  --at REV        run the tests against the sources of that commit; succeeds if every C test fails there by its assertion
  --only C5,C7,U  only the files of these cases (U: items that were never confirmed)
  --json          print one JSON document`;

interface Options {
  readonly at: string | undefined;
  readonly only: readonly string[] | undefined;
  readonly json: boolean;
}

async function main(): Promise<number> {
  let options: Options;
  try {
    options = optionsOf(process.argv.slice(2));
  } catch (thrown) {
    tell(`${(thrown as Error).message}\n\n${USAGE}`);
    return 2;
  }
  if (testFiles(ROOT, options.only).length === 0) {
    tell(`No file in ${FOLDER} is of ${options.only?.join(", ") ?? "any case"}.`);
    return 2;
  }
  const folder = mkdtempSync(join(tmpdir(), "outlive-regressions-"));
  try {
    return await runIn(folder, options);
  } catch (thrown) {
    if (!(thrown instanceof CheckoutError)) throw thrown;
    tell(thrown.message);
    return 2;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function runIn(folder: string, { at, only, json }: Options): Promise<number> {
  const commit = at === undefined ? null : commitOf(ROOT, at);
  let tree = ROOT;
  let tests = ROOT;
  if (commit !== null) {
    tell(`Checking out ${at} ...`);
    ({ tree, tests } = checkOutWithTests(ROOT, commit, folder));
    providePackages(ROOT, tree, tell);
  }
  const files = testFiles(tests, only);
  tell(`Running ${files.length} ${files.length === 1 ? "file" : "files"} ...`);
  const report = join(folder, "report.jsonl");
  const code = await runTests(tree, files, report, commit !== null);
  if (stopped !== null) return 128 + constants.signals[stopped];
  const results = resultsOf(readReport(report), files);
  const summary = commit === null ? summaryHere(results, code) : summaryThere(results, at!);
  if (json) console.log(JSON.stringify({ at: commit === null ? null : { revision: at, commit }, ...summary, results }));
  else console.log([...results.map(lineOf), "", summary.text].join("\n"));
  return summary.ok ? 0 : 1;
}

function optionsOf(args: string[]): Options {
  const { values } = parseArgs({
    args,
    options: { at: { type: "string" }, only: { type: "string" }, json: { type: "boolean", default: false } },
  });
  const only = values.only?.split(",").map((name) => name.trim().toUpperCase());
  const odd = only?.find((name) => !/^(C\d+|U)$/.test(name));
  if (odd !== undefined) throw new Error(`--only takes cases such as C5,C7 or U, not "${odd}".`);
  return { at: values.at, only, json: values.json };
}

/** `c05-lost-lease-slot.test.ts` is of case 5, `u-repeatable-read.test.ts` of none. */
function testFiles(root: string, only: readonly string[] | undefined): TestFile[] {
  const caseOf = (path: string): string => {
    const number = /(?:^|\/)c(\d+)[^/]*$/.exec(path)?.[1];
    return number === undefined ? "U" : `C${Number(number)}`;
  };
  const wanted = only && new Set(only.map((name) => name.replace(/^C0+(?=\d)/, "C")));
  return readdirSync(join(root, FOLDER), { recursive: true, encoding: "utf8" })
    .map((path) => path.replaceAll("\\", "/"))
    .filter((path) => path.endsWith(".test.ts") && (!wanted || wanted.has(caseOf(path))))
    .toSorted()
    .map((path) => ({ path: `${FOLDER}/${path}`, text: readFileSync(join(root, FOLDER, path), "utf8") }));
}

let stopped: NodeJS.Signals | null = null;

/** By the tree's own runner, which also provides the PostgreSQL server. Resolves with its exit code. */
function runTests(tree: string, files: readonly TestFile[], report: string, quiet: boolean): Promise<number> {
  const reporters = [
    `--test-reporter=${REPORTER}`,
    // The first is that of the runner's own reporter.
    "--test-reporter-destination=stdout",
    `--test-reporter-destination=${report}`,
  ];
  // Inside a test, node:test would take the runner for a child of its own.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const runner = spawn(
    process.execPath,
    [join(tree, "scripts/test.mjs"), ...reporters, ...files.map(({ path }) => path)],
    {
      cwd: tree,
      env,
      stdio: ["ignore", "pipe", 2],
    },
  );
  const stop = (signal: NodeJS.Signals): void => {
    stopped = signal;
    runner.kill("SIGTERM");
  };
  process.on("SIGINT", stop).on("SIGTERM", stop);
  showProgress(runner.stdout!, quiet);
  return new Promise((resolve, reject) => {
    runner.on("error", reject);
    runner.on("close", (code) => {
      process.off("SIGINT", stop).off("SIGTERM", stop);
      resolve(code ?? 1);
    });
  });
}

/** At an older commit failures are expected: their details would hide what matters. */
function showProgress(output: NodeJS.ReadableStream, quiet: boolean): void {
  let ended = false;
  createInterface({ input: output }).on("line", (line) => {
    ended ||= line.startsWith("ℹ ");
    if (!quiet || (!ended && /^[✔✖]/.test(line))) tell(line);
  });
}

function readReport(file: string): ReportLine[] {
  let text = "";
  try {
    text = readFileSync(file, "utf8");
  } catch {
    // The runner ended before its first test: every title is then reported as missing.
  }
  return text.split("\n").flatMap((line) => (line === "" ? [] : [JSON.parse(line) as ReportLine]));
}

const WORDS = { passed: "passed", failed: "failed", skipped: "skipped", broken: "did not run" } as const;

function lineOf(one: Result): string {
  const why = one.outcome === "broken" ? `  [${one.reason}]` : "";
  return `${caseName(one).padEnd(4)} ${WORDS[one.outcome].padEnd(11)}  ${one.title}${why}`;
}

interface Summary {
  readonly ok: boolean;
  readonly cases: number;
  readonly text: string;
}

/** A test that could not run is a failure here, too. */
function summaryHere(results: readonly Result[], code: number): Summary {
  const bad = results.filter(({ outcome }) => outcome === "failed" || outcome === "broken");
  const { total, count } = casesThat(results, "passed");
  const text =
    bad.length > 0
      ? `${count} of ${total} cases pass. These do not: ${named(bad)}.`
      : `${count} of ${total} cases pass.${code === 0 ? "" : ` The runner ended with ${code}; its reason is above.`}`;
  return { ok: bad.length === 0 && code === 0, cases: total, text };
}

/** There each test of a case must have failed by its assertion. What was never confirmed is shown, not judged. */
function summaryThere(results: readonly Result[], revision: string): Summary {
  const judged = results.filter((one) => one.case !== null);
  const passed = judged.filter(({ outcome }) => outcome === "passed");
  const idle = judged.filter(({ outcome }) => outcome === "broken" || outcome === "skipped");
  const { total, count } = casesThat(results, "failed");
  const text = [
    `${count} of ${total} cases fail at ${revision}.`,
    ...(passed.length > 0 ? [`These pass there, and so show nothing: ${named(passed)}.`] : []),
    ...(idle.length > 0 ? [`These did not run there: ${named(idle)}.`] : []),
  ].join(" ");
  return { ok: total > 0 && count === total, cases: total, text };
}

function named(results: readonly Result[]): string {
  return results.map((one) => `${caseName(one)} "${one.title}"`).join(", ");
}

function tell(line: string): void {
  console.error(line);
}

process.exitCode = await main();
