// What became of each regression test, by what the reporter wrote. Pure.
import type { ReportedError, ReportLine } from "./reporter.ts";

/** "broken": it failed, but not by an assertion, or it was not there: a file that can't be loaded has no tests. */
export type Outcome = "passed" | "failed" | "skipped" | "broken";

export interface Result {
  /** The number of the case; null: an item that was not confirmed (`U: ...`). */
  readonly case: number | null;
  readonly title: string;
  readonly file: string;
  readonly outcome: Outcome;
  /** The first line of why it is not "passed". */
  readonly reason: string | null;
}

export interface TestFile {
  /** Relative to the root of the tree, with slashes. */
  readonly path: string;
  readonly text: string;
}

const TITLE = /^(?:C(\d+)|U): /;
/** What the support of the tests throws when a fact that a test waits for does not come true. */
const NEVER_TRUE = /^(?:never came true: |not reported within )/;

/** One result for each title, by case. A title that stands in a file and did not end is a result, too. */
export function resultsOf(lines: readonly ReportLine[], files: readonly TestFile[]): Result[] {
  const results = endedTests(lines, files);
  for (const { path, text } of files) {
    const own = lines.filter(({ file }) => isFile(file, path));
    const titles = literalTitles(text);
    for (const title of titles.length > 0 ? titles : [titleOf(path)]) {
      const expected = result(path, title, "broken", whyNotLoaded(own));
      const ended = (one: Result): boolean =>
        one.case === expected.case && (titles.length === 0 || one.title === expected.title);
      if (!results.some(ended)) results.push(expected);
    }
  }
  return results.toSorted((a, b) => (a.case ?? Infinity) - (b.case ?? Infinity));
}

/** The runner reports one file after the other, and subtests before their parent. */
function endedTests(lines: readonly ReportLine[], files: readonly TestFile[]): Result[] {
  const results: Result[] = [];
  /** Errors of tests whose parent has not ended yet. */
  let pending: { readonly nesting: number; readonly error: ReportedError }[] = [];
  for (const line of lines) {
    if (line.type !== "test") continue;
    const { nesting, error, passed, skipped, title } = line;
    const own = error && error.failure !== "subtestsFailed" ? [error] : [];
    const errors = [...pending.filter((one) => one.nesting > nesting).map((one) => one.error), ...own];
    pending = pending.filter((one) => one.nesting <= nesting);
    if (nesting > 0) pending.push(...errors.map((one) => ({ nesting, error: one })));
    if (!TITLE.test(title)) continue;
    const file = files.find(({ path }) => isFile(line.file, path))?.path ?? line.file;
    const { outcome, reason } = outcomeOf(passed, skipped, errors);
    results.push(result(file, title, outcome, reason));
  }
  return results;
}

/** Of a file that can't be loaded the runner reports the path as it was given. */
function isFile(file: string, path: string): boolean {
  return `/${file.replaceAll("\\", "/")}`.endsWith(`/${path}`);
}

function outcomeOf(
  passed: boolean,
  skipped: boolean,
  errors: readonly ReportedError[],
): Pick<Result, "outcome" | "reason"> {
  if (skipped) return { outcome: "skipped", reason: "skipped" };
  if (passed) return { outcome: "passed", reason: null };
  const broken = errors.find((error) => !isAssertion(error));
  const reason = firstLine((broken ?? errors[0])?.message ?? "it failed without an error");
  return { outcome: broken || errors.length === 0 ? "broken" : "failed", reason };
}

function isAssertion({ failure, name, code, message }: ReportedError): boolean {
  return (
    failure === "testCodeFailure" && (code === "ERR_ASSERTION" || name === "AssertionError" || NEVER_TRUE.test(message))
  );
}

/** Titles that stand in the text as they are, and so are expected. */
function literalTitles(text: string): string[] {
  const calls = text.matchAll(/\b(?:test|it|specify)\(\s*(["'`])((?:C\d+|U): (?:\\.|(?!\1)[^\\])*)\1/g);
  return [...calls].map(([, , title]) => title!.replaceAll(/\\(.)/g, "$1")).filter((title) => !title.includes("${"));
}

function whyNotLoaded(lines: readonly ReportLine[]): string {
  const text = lines.flatMap((line) => (line.type === "stderr" ? [line.text] : [])).join("");
  const error = text.split("\n").find((line) => /^\s*\w*(Error|Exception)\b.*:/.test(line));
  return error ? firstLine(error.trim()) : "it is not among the tests that ran";
}

/** Of a file without a title of its own: `c05-lost-lease-slot.test.ts` is of case 5. */
function titleOf(path: string): string {
  const name = path.slice(path.lastIndexOf("/") + 1);
  const number = /^c(\d+)/.exec(name)?.[1];
  return `${number === undefined ? "U" : `C${Number(number)}`}: ${name}`;
}

function result(file: string, title: string, outcome: Outcome, reason: string | null): Result {
  const number = TITLE.exec(title)?.[1];
  return { case: number === undefined ? null : Number(number), title: title.replace(TITLE, ""), file, outcome, reason };
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0]!;
}

/** `C5`, or `U`. */
export function caseName({ case: number }: Result): string {
  return number === null ? "U" : `C${number}`;
}

export interface Cases {
  readonly total: number;
  /** Those of which every title has this outcome. */
  readonly count: number;
}

export function casesThat(results: readonly Result[], outcome: Outcome): Cases {
  const byCase = Map.groupBy(
    results.filter((one) => one.case !== null),
    (one) => one.case,
  );
  const count = [...byCase.values()].filter((all) => all.every((one) => one.outcome === outcome)).length;
  return { total: byCase.size, count };
}
