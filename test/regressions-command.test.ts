// `npm run regressions`, in a small repository of the test's own: one commit with a bug, and regression tests that were written later.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";
import { resultsOf } from "../scripts/regressions/results.ts";
import { untilTrue } from "./support/processes.ts";

const SCRIPTS = fileURLToPath(new URL("../scripts", import.meta.url));

/** As scripts/test.mjs passes on what it is given. */
const RUNNER = `
import { spawn } from "node:child_process";
const runner = spawn(process.execPath, ["--test", "--test-reporter=spec", "--disable-warning=ExperimentalWarning", ...process.argv.slice(2)], { stdio: "inherit" });
process.on("SIGTERM", () => runner.kill("SIGTERM"));
runner.on("exit", (code) => (process.exitCode = code ?? 1));
`;

const HEAD = `import assert from "node:assert/strict";\nimport { test } from "node:test";\n`;
const SUM = 'import { sum } from "../../src/sum.ts";\n';
const TESTS = {
  "c01-sum.test.ts": `${HEAD}${SUM}test("C1: two and two are four", () => assert.equal(sum(2, 2), 4));`,
  "c02-true.test.ts": `${HEAD}${SUM}test("C2: none and none are none", () => assert.equal(sum(0, 0), 0));`,
  "c03-import.test.ts": `${HEAD}import { product } from "../../src/sum.ts";\ntest("C3: three times two are six", () => assert.equal(product(3, 2), 6));`,
  "c04-column.test.ts": `${HEAD}${SUM}test("C4: a sum can be read", () => { if (sum(2, 2) !== 4) throw new Error("no such column: sum"); });`,
  "c05-inside.test.ts": `${HEAD}${SUM}test("C5: all sums are right", async (t) => { await t.test("one and one", () => assert.equal(sum(1, 1), 2)); });`,
  "u-other.test.ts": `${HEAD}${SUM}test("U: one and none are one", () => assert.equal(sum(1, 0), 1));`,
};

interface Said {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

class Repository {
  readonly #folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  readonly root = join(this.#folder, "repository");
  /** Where the command makes its own. */
  readonly temporary = join(this.#folder, "temporary");

  constructor(t: TestContext) {
    t.after(() => rmSync(this.#folder, { recursive: true, force: true }));
    mkdirSync(this.temporary);
    this.write("package.json", '{ "name": "sums", "version": "1.0.0", "type": "module" }');
    this.lock("1.0.0");
    this.write("scripts/test.mjs", RUNNER);
    this.write("src/sum.ts", "export const sum = (a: number, b: number): number => a - b;");
    this.write("test/support/nothing.ts", "");
    this.git("init", "--quiet");
    this.commit("old");
    this.write(
      "src/sum.ts",
      "export const sum = (a: number, b: number): number => a + b; export const product = (a: number, b: number): number => a * b;",
    );
    for (const part of ["regressions", "checkout.ts"])
      cpSync(join(SCRIPTS, part), join(this.root, "scripts", part), { recursive: true });
    for (const [name, text] of Object.entries(TESTS)) this.write(`test/regressions/${name}`, text);
  }

  write(path: string, text: string): void {
    mkdirSync(dirname(join(this.root, path)), { recursive: true });
    writeFileSync(join(this.root, path), text);
  }

  lock(version: string): void {
    this.write(
      "package-lock.json",
      JSON.stringify({ name: "sums", version, lockfileVersion: 3, packages: { "": { name: "sums", version } } }),
    );
  }

  git(...args: readonly string[]): string {
    return execFileSync("git", ["-C", this.root, ...args], { encoding: "utf8" });
  }

  commit(tag: string): void {
    this.git("add", "--all");
    this.git("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message", tag);
    this.git("tag", tag);
  }

  start(...args: readonly string[]) {
    const child = spawn(
      process.execPath,
      ["--disable-warning=ExperimentalWarning", "scripts/regressions/main.ts", ...args],
      {
        cwd: this.root,
        env: { ...process.env, TMPDIR: this.temporary },
        stdio: ["ignore", "pipe", "pipe"],
      },
    );
    let stdout = "";
    let stderr = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
    child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
    const ended = new Promise<Said>((resolve) => child.on("close", (code) => resolve({ code, stdout, stderr })));
    return { child, ended };
  }

  run(...args: readonly string[]): Promise<Said> {
    return this.start(...args).ended;
  }

  assertClean(): void {
    // npm keeps a cache of its own there.
    assert.deepEqual(
      readdirSync(this.temporary).filter((name) => name.startsWith("outlive")),
      [],
    );
    assert.equal(this.git("worktree", "list").trim().split("\n").length, 1);
  }
}

test("without --at the tests of this tree run, one line each, and the exit code says whether all pass", async (t) => {
  const repository = new Repository(t);
  const good = await repository.run();
  assert.deepEqual(
    [good.code, good.stdout.split("\n").slice(0, 2)],
    [0, ["C1   passed       two and two are four", "C2   passed       none and none are none"]],
  );
  assert.match(good.stdout, /\nU    passed {7}one and none are one\n\n5 of 5 cases pass\.\n$/);
  const some = await repository.run("--only", "C1,c05");
  assert.match(some.stdout, /^C1 .*\nC5 .*\n\n2 of 2 cases pass\.\n$/);
  repository.write("src/sum.ts", "export const sum = (a: number, b: number): number => a - b;");
  const bad = await repository.run("--only", "C1,C2");
  assert.equal(bad.code, 1);
  assert.match(
    bad.stdout,
    /^C1 +failed .*\nC2 +passed .*\n\n1 of 2 cases pass\. These do not: C1 "two and two are four"\.\n$/,
  );
  assert.match(bad.stderr, /ERR_ASSERTION/, "the details are on stderr");
  repository.assertClean();
});

test("with --at it succeeds if every test fails there by its assertion, and leaves nothing behind", async (t) => {
  const repository = new Repository(t);
  const { code, stdout } = await repository.run("--at", "old", "--only", "C1,C5,U");
  assert.match(
    stdout,
    /^C1 +failed +two and two.*\nC5 +failed +all sums.*\nU +passed .*\n\n2 of 2 cases fail at old\.\n$/,
  );
  assert.equal(code, 0);
  repository.assertClean();
});

test("with --at it names the tests that pass there, and those that did not run", async (t) => {
  const repository = new Repository(t);
  const { code, stdout } = await repository.run("--at", "old", "--json");
  assert.equal(code, 1);
  const { at, ok, text, results } = JSON.parse(stdout) as {
    at: { revision: string; commit: string };
    ok: boolean;
    text: string;
    results: { case: number | null; outcome: string; reason: string | null }[];
  };
  assert.deepEqual([ok, at], [false, { revision: "old", commit: repository.git("rev-parse", "old").trim() }]);
  assert.deepEqual(
    results.map((one) => [one.case, one.outcome]),
    [
      [1, "failed"],
      [2, "passed"],
      [3, "broken"],
      [4, "broken"],
      [5, "failed"],
      [null, "passed"],
    ],
  );
  assert.match(results[2]!.reason!, /SyntaxError: .*does not provide an export named 'product'/);
  assert.equal(results[3]!.reason, "no such column: sum");
  assert.equal(
    text,
    '2 of 5 cases fail at old. These pass there, and so show nothing: C2 "none and none are none". These did not run there: C3 "three times two are six", C4 "a sum can be read".',
  );
  repository.assertClean();
});

test("a commit with other packages gets its own", async (t) => {
  const repository = new Repository(t);
  repository.lock("2.0.0");
  const { code, stdout, stderr } = await repository.run("--at", "old", "--only", "C1");
  assert.deepEqual([code, stdout.split("\n").at(-2)], [0, "1 of 1 cases fail at old."], stderr);
  assert.match(stderr, /installing its packages/);
  repository.assertClean();
});

test("an unknown commit, an unknown case and an unknown option are refused with a sentence", async (t) => {
  const repository = new Repository(t);
  for (const [args, says] of [
    [["--at", "nowhere"], /nowhere is not a commit of this repository/],
    [["--only", "C99"], /No file in test\/regressions is of C99/],
    [["--only", "five"], /--only takes cases such as C5,C7 or U, not "FIVE"/],
    [["--fast"], /Unknown option '--fast'[\s\S]*Usage: npm run regressions/],
  ] as const) {
    const { code, stdout, stderr } = await repository.run(...args);
    assert.deepEqual([code, stdout], [2, ""]);
    assert.match(stderr, says);
  }
  repository.assertClean();
});

test("ended by SIGTERM it ends its tests and leaves nothing behind", async (t) => {
  const repository = new Repository(t);
  const started = join(repository.root, "started");
  repository.write(
    "test/regressions/c06-long.test.ts",
    `${HEAD}import { writeFileSync } from "node:fs";
     test("C6: it is long", async () => { writeFileSync(${JSON.stringify(started)}, ""); await new Promise((resolve) => setTimeout(resolve, 3_600_000)); });`,
  );
  const { child, ended } = repository.start("--at", "old", "--only", "C6");
  await untilTrue(() => existsSync(started), Boolean, "the test has started");
  child.kill("SIGTERM");
  assert.equal((await ended).code, 143);
  repository.assertClean();
});

test("an error in one of several subtests does not hide that the others failed by their assertion", () => {
  const test = { type: "test", file: "/x/test/regressions/c07.test.ts", passed: false, skipped: false } as const;
  const assertion = { failure: "testCodeFailure", name: "AssertionError", code: "ERR_ASSERTION", message: "1 !== 2" };
  const fault = { failure: "testCodeFailure", name: "TypeError", code: "", message: "x is not a function" };
  const subtests = { failure: "subtestsFailed", name: "Error", code: "", message: "2 subtests failed" };
  const lines = [
    { ...test, title: "C7: a", nesting: 1, error: fault },
    { ...test, title: "C7: b", nesting: 1, error: assertion },
    { ...test, title: "C7: all", nesting: 0, error: subtests },
    { ...test, title: "C8: next", nesting: 0, error: assertion },
  ];
  assert.deepEqual(
    resultsOf(lines, []).map(({ title, outcome }) => [title, outcome]),
    [
      ["a", "broken"],
      ["b", "failed"],
      ["all", "broken"],
      ["next", "failed"],
    ],
  );
});
