// The oracle of the rig for batches: a run in which everything held has no finding, and each fault that it is there for is found.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { audit, type Facts, type Findings, type Found } from "../../proof/torture/batches/audit.ts";
import { isKept, lineOf } from "../../proof/torture/batches/command.ts";
import type { Line } from "../../proof/torture/batches/history.ts";
import { endOf, fileOf, keyOf, type Planned, planOf, roundsOf, textOf } from "../../proof/torture/batches/plan.ts";

const SEED = 1;
const PLANS = new Map(
  [1, 2].flatMap((submitter) =>
    Array.from({ length: 20 }, (_, number) => {
      const key = keyOf(submitter, number);
      return [key, planOf(SEED, key, submitter === 1)] as const;
    }),
  ),
);
const idOf = (key: string): string => `batch-${key}`;

/** Aborted before any row ran: only what does not fit the schema has failed. */
function abortedOf({ key, rows }: Planned): Found {
  const failed = rows.flatMap(({ n, role }) => (role === "invalid" ? [{ line: n + 1, state: "failed" as const }] : []));
  const sums = { succeeded: 0, failed: failed.length, quarantined: 0, aborted: rows.length - failed.length };
  const found = { id: idOf(key), key, state: "aborted", failed, output: null, doneJobs: 1 };
  return { ...found, rows: { total: rows.length, ...sums, left: 0 } };
}

function foundOf(plan: Planned): Found {
  if (plan.act === "abort") return abortedOf(plan);
  const count = (end: string): number => plan.rows.filter(({ role }) => endOf(role) === end).length;
  return {
    id: idOf(plan.key),
    key: plan.key,
    state: "completed",
    rows: {
      total: plan.rows.length,
      succeeded: count("succeeded"),
      failed: count("failed"),
      quarantined: count("quarantined"),
      aborted: 0,
      left: 0,
    },
    failed: plan.rows.flatMap(({ n, role }) => {
      const end = endOf(role);
      return end === "succeeded" ? [] : [{ line: n + 1, state: end }];
    }),
    output: fileOf(plan),
    doneJobs: roundsOf(plan).length,
  };
}

/** What a run leaves behind in which every promise was kept. */
function soundFacts(): Facts {
  const plans = [...PLANS.values()];
  return {
    plans: PLANS,
    lines: plans.flatMap(({ key, kind, act, rows, ...plan }): Line[] => [
      { what: "ask", key },
      { what: "ack", key, id: idOf(key), rows: rows.length },
      ...roundsOf({ key, kind, act, rows, ...plan }).map((round): Line => ({ what: "ended", id: idOf(key), round })),
      ...(kind === "careful" && act !== "abort"
        ? rows.map(({ n }): Line => ({ what: "run", key, n, attempt: `${key}:1:${Math.floor(n / 10)} 1` }))
        : []),
    ]),
    found: plans.map(foundOf),
    paid: plans
      .filter(({ kind, act }) => act !== "abort" && (kind === "commits" || kind === "blocks"))
      .flatMap(({ key, rows }) =>
        rows.filter(({ role }) => endOf(role) === "succeeded").map(({ n }) => [key, n] as const),
      ),
    done: plans.flatMap((plan) => roundsOf(plan).map((round) => [idOf(plan.key), round] as const)),
    inconsistencies: [],
  };
}

/** The facts with one batch changed. */
function with_(of: (plan: Planned) => boolean, change: (found: Found) => Found): Facts {
  const facts = soundFacts();
  const { key } = [...PLANS.values()].find(of)!;
  return { ...facts, found: facts.found.map((found) => (found.key === key ? change(found) : found)) };
}

function countsOf(findings: Findings): Record<string, number> {
  return Object.fromEntries(
    Object.entries(findings)
      .map(([law, broken]) => [law, (broken as readonly string[]).length] as const)
      .filter(([, count]) => count > 0),
  );
}

const isLarge = ({ rows, act }: Planned): boolean => rows.length === 1_000 && act === "none";
const isRetried = (plan: Planned): boolean => roundsOf(plan).length === 2;
const isAborted = ({ act, kind, rows }: Planned): boolean => act === "abort" && kind === "commits" && rows.length > 1;
const isPoisoned = ({ rows }: Planned): boolean => rows.some(({ role }) => role === "poison");
const facts = soundFacts();
const [firstPaid] = facts.paid;
const firstKey = [...PLANS.keys()][0]!;

/** What is planted, and the only counters that may then be other than 0. */
const FAULTS: Readonly<Record<string, { readonly facts: Facts; readonly counts: Readonly<Record<string, number>> }>> = {
  "a batch that never ends": {
    facts: with_(isLarge, (found) => ({ ...found, state: "sealed" })),
    counts: { endedNever: 1 },
  },
  "a batch whose `done` never ran": { facts: { ...facts, done: facts.done.slice(1) }, counts: { endedNever: 1 } },
  "a batch that is not there": {
    facts: { ...facts, found: facts.found.filter(({ key }) => key !== firstKey) },
    counts: { endedNever: 1, rowsLost: 100 },
  },
  "a batch that two processes end": {
    facts: { ...facts, lines: [...facts.lines, { what: "ended", id: idOf(firstKey), round: 1 }] },
    counts: { endedTwice: 1 },
  },
  "a row that no sum counts": {
    facts: with_(isLarge, (found) => ({ ...found, rows: { ...found.rows, succeeded: found.rows.succeeded - 1 } })),
    counts: { rowsLost: 1 },
  },
  "a row that was never added": {
    facts: with_(isLarge, (found) => ({
      ...found,
      rows: { ...found.rows, total: 999, succeeded: found.rows.succeeded - 1 },
    })),
    counts: { rowsLost: 1 },
  },
  "a row that was not committed": { facts: { ...facts, paid: facts.paid.slice(1) }, counts: { rowsLost: 1 } },
  "a row that is counted twice": {
    facts: with_(isLarge, (found) => ({ ...found, rows: { ...found.rows, succeeded: found.rows.succeeded + 1 } })),
    counts: { rowsTwice: 1 },
  },
  "a row that is committed twice": { facts: { ...facts, paid: [...facts.paid, firstPaid!] }, counts: { rowsTwice: 1 } },
  "a block that a second submission adds again": {
    facts: with_(isLarge, (found) => ({
      ...found,
      rows: { ...found.rows, total: 1_010, succeeded: found.rows.succeeded + 10 },
    })),
    counts: { rowsTwice: 10 },
  },
  "a failed row that is committed": {
    facts: {
      ...facts,
      paid: [...facts.paid, badRow()],
    },
    counts: { rowsTwice: 1 },
  },
  "an output without its last byte": {
    facts: with_(isLarge, (found) => ({ ...found, output: found.output!.slice(0, -1) })),
    counts: { outputsDiffer: 1 },
  },
  "two lines of an output in the wrong order": {
    facts: with_(isLarge, (found) => {
      const [first, second, ...rest] = found.output!.split("\n");
      return { ...found, output: [second, first, ...rest].join("\n") };
    }),
    counts: { outputsDiffer: 1 },
  },
  "a `done` that is committed twice": {
    facts: { ...facts, done: [...facts.done, facts.done[0]!] },
    counts: { doneTwice: 1 },
  },
  "a second job that follows an end": {
    facts: with_(isLarge, (found) => ({ ...found, doneJobs: 2 })),
    counts: { doneTwice: 1 },
  },
  "a neighbour of the guilty row in quarantine": {
    facts: with_(isPoisoned, (found) => ({ ...found, failed: [...found.failed, innocentOf(isPoisoned)] })),
    counts: { innocentRowsQuarantined: 1 },
  },
  "a marked row that runs again": {
    facts: { ...facts, lines: [...facts.lines, ...againOf()] },
    counts: { others: 1 },
  },
  "a second round whose `done` never ran": {
    facts: { ...facts, done: facts.done.filter(([, round]) => round === 1 || round === undefined) },
    counts: { endedNever: [...PLANS.values()].filter(isRetried).length },
  },
  "a `done` of a second round that is committed twice": {
    facts: { ...facts, done: [...facts.done, facts.done.find(([, round]) => round === 2)!] },
    counts: { doneTwice: 1 },
  },
  "a third job that follows an end": {
    facts: with_(isRetried, (found) => ({ ...found, doneJobs: 3 })),
    counts: { doneTwice: 1 },
  },
  "an aborted batch that never ends": {
    facts: with_(isAborted, (found) => ({ ...found, state: "aborting" })),
    counts: { endedNever: 1 },
  },
  "a row of an aborted batch that is committed and not counted": {
    facts: { ...facts, paid: [...facts.paid, [abortedPlan().key, 0]] },
    counts: { rowsLost: 1, outputsDiffer: 1 },
  },
  "a row of an aborted batch that no sum counts": {
    facts: with_(isAborted, (found) => ({ ...found, rows: { ...found.rows, aborted: found.rows.aborted - 1 } })),
    counts: { rowsLost: 1 },
  },
  "a row of an aborted batch that is counted and not committed": {
    facts: with_(isAborted, (found) => ({
      ...found,
      rows: { ...found.rows, aborted: found.rows.aborted - 1, succeeded: 1 },
    })),
    counts: { rowsLost: 1 },
  },
  "a row that fails and should not": {
    facts: with_(isLarge, (found) => ({
      ...found,
      rows: { ...found.rows, succeeded: found.rows.succeeded - 1, failed: found.rows.failed + 1 },
    })),
    counts: { others: 2 },
  },
};

function abortedPlan(): Planned {
  return [...PLANS.values()].find(isAborted)!;
}

function badRow(): readonly [string, number] {
  const plan = [...PLANS.values()].find(
    ({ kind, act, rows }) => kind === "commits" && act === "none" && rows.length === 1_000,
  )!;
  return [plan.key, plan.rows.find(({ role }) => role === "bad")!.n];
}

function innocentOf(of: (plan: Planned) => boolean): Found["failed"][number] {
  const { rows } = [...PLANS.values()].find(of)!;
  return { line: rows.find(({ role }) => role === "good")!.n + 1, state: "quarantined" };
}

/** Row 0 of a careful batch begins again, and the row after it. */
function againOf(): Line[] {
  const { key } = [...PLANS.values()].find(
    ({ kind, act, rows }) => kind === "careful" && act === "none" && rows.length > 1 && rows[0]!.role === "good",
  )!;
  return [0, 9].map((n): Line => ({ what: "run", key, n, attempt: `${key}:1:0 2` }));
}

describe("the oracle of batches", () => {
  it("finds nothing in a run that kept every promise", () => {
    const { findings, poisonFound } = audit(soundFacts());
    assert.deepEqual([countsOf(findings), poisonFound], [{}, 1]);
  });

  for (const [what, planted] of Object.entries(FAULTS))
    it(`finds ${what}`, () => assert.deepEqual(countsOf(audit(planted.facts).findings), planted.counts));

  it("where nothing can be committed, a row that ran may be aborted, and a row that is counted or written must have run", () => {
    const { key, rows } = abortedPlan();
    const [first, second] = rows.filter((row) => row.role === "good" && textOf(row) !== "");
    const counts = (change: (found: Found) => Found): Record<string, number> =>
      countsOf(
        audit({ ...with_(isAborted, change), paid: [...facts.paid, [key, first!.n]], exactlyOnce: false }).findings,
      );
    const countedAs = (succeeded: number, output: string | null) => (found: Found) => ({
      ...found,
      rows: { ...found.rows, aborted: found.rows.aborted - succeeded, succeeded },
      output,
    });
    assert.deepEqual(counts(countedAs(0, null)), {});
    assert.deepEqual(counts(countedAs(1, textOf(first!))), {});
    assert.deepEqual(counts(countedAs(2, null)), { rowsLost: 1 });
    assert.deepEqual(counts(countedAs(1, textOf(second!))), { outputsDiffer: 1 });
  });

  it("counts the poison rows that are in quarantine, and a run that misses one has failed", () => {
    const { findings, poisonFound } = audit(
      with_(isPoisoned, (found) => ({ ...found, failed: found.failed.filter(({ state }) => state === "failed") })),
    );
    assert.equal(poisonFound, 0);
    const outcome = {
      kills: 3,
      acts: {},
      takeovers: 0,
      staleWritesRejected: 0,
      batches: 40,
      rows: 4_000,
      poison: 1,
      poisonDeaths: 3,
    };
    const sound = { ...outcome, poisonFound: 1, findings: audit(soundFacts()).findings };
    assert.equal(isKept(sound), true);
    assert.equal(isKept({ ...sound, poisonFound }), false, "not found");
    assert.equal(isKept({ ...sound, findings }), false, "not among the failed");
    const line = lineOf("sqlite", SEED, sound);
    for (const law of ["endedNever", "endedTwice", "rowsLost", "rowsTwice", "outputsDiffer", "doneTwice"])
      assert.equal(line[law], 0, law);
    assert.deepEqual([line["batches"], line["poisonFound"], line["innocentRowsQuarantined"]], [40, 1, 0]);
  });

  it("plans the same batches from the same seed: of 0, 1, 8 and 1,000 rows, in every kind", () => {
    const sizes = new Set([...PLANS.values()].map(({ rows }) => rows.length));
    assert.deepEqual(
      [...sizes].toSorted((a, b) => a - b),
      [0, 1, 8, 100, 1_000],
    );
    assert.equal(new Set([...PLANS.values()].map(({ kind }) => kind)).size, 4);
    assert.deepEqual(planOf(SEED, "2-1", false), PLANS.get("2-1"));
  });
});
