// docs/cli.md is the page of every command: none may be added to the program without it.
import { Command } from "commander";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { COMMANDS } from "../../src/cli/main.ts";

const page = readFileSync(new URL("../../docs/cli.md", import.meta.url), "utf8");
const changelog = readFileSync(new URL("../../CHANGELOG.md", import.meta.url), "utf8");

function allCommands(): readonly Command[] {
  const program = new Command("outlive");
  for (const register of COMMANDS) register(program, () => async () => {});
  return program.commands;
}

test("every command has its heading in docs/cli.md, and what it prints with --json is in the table there", () => {
  const headings = page.split("\n").filter((line) => line.startsWith("### "));
  const table = page.slice(page.indexOf("## JSON")).split("\n");
  const names = allCommands().map((command) => command.name());
  assert.ok(names.includes("torture"));
  const named = (lines: readonly string[], name: string): boolean =>
    lines.some((line) => new RegExp(`\`${name}[ \`]`).test(line));
  // The old spellings of `incidents` are documented with it.
  const alias = "recovery";
  assert.deepEqual(
    names.filter((name) => name !== alias && !named(headings, name)),
    [],
  );
  // A worker prints a log, not a document.
  assert.deepEqual(
    names.filter((name) => name !== "work" && !named(table, name)),
    [],
  );
});

test("every command that the page of commands has is in the changelog's list", () => {
  const at = changelog.indexOf("The command line `outlive`");
  const list = changelog.slice(at, changelog.indexOf("\n- ", at));
  const names = allCommands().map((command) => command.name());
  assert.deepEqual(
    names.filter((name) => name !== "recovery" && name !== "incident" && !list.includes(`\`${name}\``)),
    [],
  );
});
