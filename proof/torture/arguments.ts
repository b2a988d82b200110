// What the command lines of the rigs have in common.
import { accessSync, constants } from "node:fs";
import { tmpdir } from "node:os";
import { SCENARIOS, type Scenario } from "./scenarios/scenario.ts";

export function wholeNumber(text: string, option: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new Error(`--${option} ${text}: use a whole number.`);
  return Number(text);
}

/** All of them, or those whose names are given, separated by commas. */
export function scenariosOf(names: string | undefined): readonly Scenario[] {
  if (names === undefined) return SCENARIOS;
  return names.split(",").map((name) => {
    const found = SCENARIOS.find((scenario) => scenario.name === name);
    if (!found) throw new Error(`--scenario ${name}: use ${SCENARIOS.map((scenario) => scenario.name).join(", ")}.`);
    return found;
  });
}

/** A file system in memory where there is one: states are written and thrown away by the thousand, and no sync has to be real. */
export function scratchRoot(): string {
  try {
    accessSync("/dev/shm", constants.W_OK);
    return "/dev/shm";
  } catch {
    return tmpdir();
  }
}
