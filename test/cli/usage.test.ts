// Calls that can't be understood: as text on stderr for people, as one document on stdout for programs; exit code 2 either way.
import assert from "node:assert/strict";
import { test } from "node:test";
import { main } from "../../src/cli/main.ts";
import { cli, cliOn, shapeOf } from "../support/cli.ts";
import { USAGE } from "./shapes.ts";

const NOWHERE = "sqlite:/nowhere/jobs.db";
const SEE_HELP = "See `outlive --help`, or `outlive COMMAND --help`.";

for (const [what, args, message, hint] of [
  ["an unknown command", ["job5"], "unknown command 'job5'", "Did you mean one of job, jobs?"],
  ["an unknown command like no other", ["xyzzy"], "unknown command 'xyzzy'", SEE_HELP],
  ["an unknown option", ["jobs", "--knd", "mail"], "unknown option '--knd'", "Did you mean --kind?"],
  [
    "an unusable value",
    ["jobs", "--limit", "0"],
    "option '--limit <number>' argument '0' is invalid. Use a whole number from 1 to 1000.",
    SEE_HELP,
  ],
  ["a missing argument", ["why"], "missing required argument 'id'", SEE_HELP],
  ["no command at all", [], "A command is missing.", SEE_HELP],
  ["half a command", ["quarantine"], "A command is missing.", SEE_HELP],
] as const) {
  test(`${what} is a JSON document with --json, and text without`, async (t) => {
    const { code, stdout, stderr } = await cli(t, ["--json", ...args], { store: NOWHERE });
    assert.deepEqual([code, stderr], [2, ""]);
    const value = JSON.parse(stdout) as unknown;
    assert.deepEqual(value, { error: { code: "USAGE", message, hint } });
    assert.deepEqual(shapeOf(value), USAGE);
    const text = await cli(t, args, { store: NOWHERE });
    assert.deepEqual([text.code, text.stdout], [2, ""]);
    assert.notEqual(text.stderr, "");
  });
}

test("the message of a JSON error does not repeat its hint", async (t) => {
  const { value } = await cliOn(t, NOWHERE).json("status");
  const { message, hint } = (value as { error: { message: string; hint: string } }).error;
  assert.notEqual(hint, "");
  assert.ok(!message.includes(hint), message);
});

test("--json behind -- is a word like any other", async (t) => {
  const { code, stdout, stderr } = await cli(t, ["nonsense", "--", "--json"], { store: NOWHERE });
  assert.deepEqual([code, stdout], [2, ""]);
  assert.match(stderr, /unknown command/);
});

test("the help names every configuration file", async (t) => {
  const { code, stdout } = await cli(t, ["--help"]);
  assert.equal(code, 0);
  for (const name of ["outlive.config.ts", ".mts", ".mjs", ".js", "outlive.yaml", ".yml"])
    assert.ok(stdout.includes(name), name);
});

/** The help on a terminal of 80 columns. */
async function help(...command: string[]): Promise<string> {
  let text = "";
  const write = (more: string): boolean => ((text += more), true);
  const stream = { isTTY: true, columns: 80, write } as unknown as NodeJS.WriteStream;
  assert.equal(await main([...command, "--help"], { stdout: stream, stderr: stream }), 0);
  return text;
}

test("the help is grouped, no line of it is wider than the terminal, and defaults are written as people write them", async () => {
  const all = await help();
  const headings = [...all.matchAll(/^(\S.*:)$/gm)].map(([, heading]) => heading);
  assert.deepEqual(
    new Set(headings),
    new Set([
      "Batches, requests, collections and schedules:",
      "Change:",
      "Inspect:",
      "Options:",
      "Other:",
      "Start and run:",
      "The store:",
    ]),
  );
  const other = all.slice(all.indexOf("Other:")).split("\n\n")[0]!;
  assert.deepEqual(
    [...other.matchAll(/^ {2}(\w+)/gm)].map(([, name]) => name),
    ["completion", "help"],
    "every other command has a heading",
  );
  const names = [...all.matchAll(/^ {2}([a-z]+) /gm)].map(([, name]) => name!).filter((name) => name !== "help");
  assert.ok(names.length > 35);
  for (const name of ["", ...names]) {
    const text = name === "" ? all : await help(name);
    assert.deepEqual(
      text.split("\n").filter((line) => line.length > 80),
      [],
      name,
    );
    assert.doesNotMatch(text, /\(default: (?:\d{5,}|\[\])\)/, name);
  }
  assert.match(await help("status"), /how long the oldest ready job may wait \(default: 5m\)/);
});
