// One form of instants per face: the API gives ms since 1970, `--json` of the command line gives ISO 8601. Their names are `at` or end in
// `At`, and nothing else is an instant.
import assert from "node:assert/strict";
import { test } from "node:test";
import { jsonText } from "../../src/cli/terminal.ts";
import * as SHAPES from "../cli/shapes.ts";
import { stepped } from "../support/jobs.ts";
import { Place } from "../support/processes.ts";

const ISO = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}/;

/** What users have stored may have any names. */
const OF_USERS = ["input", "result", "progress"];

/** Calls `leaf` with every value that has no members, and the name of the member that holds it. */
function walk(value: unknown, leaf: (name: string, value: unknown, path: string) => void, name = "", path = ""): void {
  if (typeof value !== "object" || value === null) return leaf(name, value, path);
  for (const [key, member] of Object.entries(value)) {
    if (Array.isArray(value)) walk(member, leaf, name, `${path}[]`);
    else if (!OF_USERS.includes(key)) walk(member, leaf, key, `${path}.${key}`);
  }
}

const isInstant = (name: string): boolean => name === "at" || name.endsWith("At");

/** The instants in a value; fails on one that has another form than `is`, and on a text outside of them that is one. */
function instantsOf(value: unknown, is: (value: unknown) => boolean): string[] {
  const found = new Set<string>();
  walk(value, (name, leaf, path) => {
    if (!isInstant(name)) return assert.ok(typeof leaf !== "string" || !ISO.test(leaf), `${path} is an instant`);
    if (leaf === null) return;
    assert.ok(is(leaf), `${path} is ${JSON.stringify(leaf)}`);
    found.add(name);
  });
  return [...found].toSorted();
}

/** Of this century, so a number of seconds or of ms since the start of a process does not count. */
const isMs = (value: unknown): boolean => Number.isInteger(value) && (value as number) > Date.UTC(2000, 0);
const isIso = (value: unknown): boolean =>
  typeof value === "string" && new Date(value).toISOString() === value && isMs(Date.parse(value));

test("every instant of the API is in ms, and in JSON of the command line ISO 8601", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(stepped, { stopAt: "between" });
  const victim = place.child({ heartbeat: {} });
  await victim.untilFact("waiting", { point: "between" });
  victim.kill();
  await victim.exited;
  const deaths = await engine.operator.deaths();
  const recovered = (await engine.operator.recover())!;
  const [incident] = await engine.incidents();
  await engine.cancel(id);
  const { text, ...report } = (await engine.report(incident!.id))!;
  const { text: _, ...pass } = recovered;
  assert.match(text, /Started: \d{4}-\d{2}-\d{2}T[\d:]+Z\n/, "people read ISO 8601 with seconds");
  const api = {
    job: await engine.get(id),
    list: await engine.list(),
    counts: await engine.counts(),
    workers: await engine.workers({ which: "all" }),
    incident,
    report,
    pass,
    deaths,
    health: await engine.health(),
  };
  const names = [
    "at",
    "completedAt",
    "createdAt",
    "deadlineAt",
    "detectedAt",
    "finishedAt",
    "heartbeatAt",
    "lastHeartbeatAt",
    "recoveredAt",
    "startedAt",
  ];
  assert.deepEqual(
    instantsOf(api, isMs).filter((name) => name !== "lastSeenAliveAt"),
    names,
  );
  assert.deepEqual(
    instantsOf(JSON.parse(jsonText(api)), isIso).filter((name) => name !== "lastSeenAliveAt"),
    names,
  );
});

test("the forms that the command line promises have texts as instants and numbers as durations", () => {
  let instants = 0;
  walk(SHAPES, (name, leaf, path) => {
    if (isInstant(name)) {
      assert.ok(leaf === "string" || leaf === "null", `${path} is a ${String(leaf)}`);
      instants++;
    }
    if (name.endsWith("Ms")) assert.ok(leaf === "number" || leaf === "null", `${path} is a ${String(leaf)}`);
    assert.notEqual(name, "fence", `${path}: people are shown attempts`);
  });
  assert.ok(instants > 10);
});
