// The audit of waiting and keys can fail. Each law is broken by hand in a history that was in order; and with real processes, each protection is
// switched off (`--plant`).
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { rmSync } from "node:fs";
import { test } from "node:test";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { audit, type Facts, type Findings, NO_FACTS, NO_FINDINGS } from "../../proof/torture/features/audit.ts";
import type { Line } from "../../proof/torture/features/kinds.ts";
import type { Sighting } from "../../proof/torture/features/observer.ts";
import { PLANTS } from "../../proof/torture/features/plants.ts";

function line(what: Line["what"], kind: string, at: number, more: Partial<Line> = {}): Line {
  return { what, kind, at, key: "k", job: "a", attempt: 1, process: 1, n: 0, ...more };
}

function sighting(kind: string, job: string, runs: boolean, startedAt: number, more: Partial<Sighting> = {}): Sighting {
  return { kind, job, runs, startedAt, key: "k", fence: 1, ...more };
}

/** Two of a key one after the other, the first killed; a line; a listener; events; a nap. */
const SOUND: Facts = {
  ...NO_FACTS,
  lines: [
    line("start", "limited", 0),
    line("start", "limited", 20, { attempt: 2, process: 2 }),
    line("end", "limited", 30, { attempt: 2, process: 2 }),
    line("start", "limited", 31, { job: "b" }),
    line("end", "limited", 40, { job: "b" }),
    line("start", "ordered", 50, { job: "c" }),
    line("end", "ordered", 60, { job: "c" }),
    line("start", "ordered", 60, { job: "d", n: 1 }),
    line("end", "ordered", 70, { job: "d", n: 1 }),
    line("heard", "listener", 80, { job: "l", n: 1 }),
    line("heard", "listener", 81, { job: "l", n: 2 }),
    line("saw", "event", 100, { job: "e", n: 1 }),
    line("saw", "event", 120, { job: "f", n: 2 }),
    line("saw", "calm", 300, { job: "g", n: 1 }),
    line("slept", "napper", 400, { job: "n", n: 80 }),
  ],
  killedAt: new Map([[1, 10]]),
  sightings: [
    sighting("limited", "a", true, 0),
    sighting("limited", "a", false, 0),
    sighting("limited", "a", true, 20, { fence: 2 }),
    sighting("limited", "a", false, 20),
    sighting("limited", "b", true, 31),
    sighting("limited", "b", false, 31),
    sighting("ordered", "c", true, 50),
    sighting("ordered", "c", false, 50),
    sighting("ordered", "d", true, 60),
    // A burst of three, and then one each 100 ms.
    ...[0, 0, 0, 100, 200].map((at, n) => sighting("paced", `p${n}`, true, at)),
    ...[0, 400, 800].map((at, n) => sighting("slow", `s${n}`, true, at)),
  ],
  events: new Map([
    [
      "event k",
      [
        { n: 1, sentAt: 90 },
        { n: 2, sentAt: 110 },
      ],
    ],
    ["calm k", [{ n: 1, sentAt: 150 }]],
  ]),
  signals: new Map([["l", [1, 2]]]),
  counts: [{ kind: "limited", expected: 2, found: 2 }],
};

test("a history in order passes", () => assert.deepEqual(audit(SOUND), NO_FINDINGS));

function lines(...more: readonly Line[]): Facts {
  return { ...SOUND, lines: [...SOUND.lines, ...more] };
}

function seen(...more: readonly Sighting[]): Facts {
  return { ...SOUND, sightings: [...SOUND.sightings, ...more] };
}

function unfinished(kind: string): Facts {
  return { ...SOUND, unfinished: [{ id: "z", kind, why: "nobody knows" }] };
}

const DAMAGE: readonly (readonly [title: string, facts: Facts, law: keyof Findings, sentence: RegExp])[] = [
  [
    "a second of a key that starts before the first has ended",
    lines(line("start", "limited", 35, { job: "x" })),
    "overLimit",
    /^key k: x attempt 1 started 5.0 ms before b attempt 1 had ended$/,
  ],
  [
    "a second of a key that is claimed while the first runs",
    seen(sighting("limited", "x", true, 50), sighting("limited", "y", true, 51)),
    "overLimit",
    /^key k: y was claimed under fence 1 while x ran$/,
  ],
  [
    "a start that a crash has minted",
    seen(sighting("paced", "x", true, 299)),
    "overLimit",
    /^key k of paced: 6 starts in 299 ms$/,
  ],
  [
    "a throttled event 1 ms too soon",
    seen(sighting("slow", "x", true, 5_000), sighting("slow", "y", true, 5_399)),
    "overLimit",
    /^key k of slow/,
  ],
  ["a job with a key that never ends", unfinished("limited"), "stuckKeys", /^limited z never ended: nobody knows$/],
  [
    "a job that ended otherwise",
    { ...SOUND, ended: [{ id: "z", kind: "paced", state: "dead" }] },
    "stuckKeys",
    /^paced z is dead$/,
  ],
  [
    "the next of a line that starts before the one before has ended",
    lines(line("start", "ordered", 69, { job: "x", n: 2 })),
    "orderBroken",
    /^key k: 2 started before 1 had ended$/,
  ],
  [
    "one of a line that is claimed again after the next has begun",
    seen(sighting("ordered", "c", true, 70, { fence: 2 })),
    "orderBroken",
    /^key k: c was claimed again after d had begun$/,
  ],
  [
    "a signal that was kept and never read",
    { ...SOUND, signals: new Map([["l", [1, 2, 3]]]) },
    "signalsLost",
    /^listener l was sent 1,2,3 and heard 1,2$/,
  ],
  [
    "signals in another order",
    { ...SOUND, signals: new Map([["l", [2, 1]]]) },
    "signalsLost",
    /^listener l was sent 2,1 and heard 1,2$/,
  ],
  ["a parent that is never woken", unfinished("parent"), "parentsAsleep", /^parent z never ended/],
  ["a sleeper that is never woken", unfinished("napper"), "parentsAsleep", /^napper z never ended/],
  [
    "an event that only an attempt from before it has seen",
    { ...SOUND, events: new Map([["event k", [{ n: 2, sentAt: 121 }]]]) },
    "rerunsLost",
    /^event 2 of event k was not seen by an attempt that began after it$/,
  ],
  [
    "a debounced event that was not quiet for long enough",
    lines(line("saw", "calm", 250, { job: "g", n: 1 })),
    "early",
    /^event 1 of calm k was seen 100.0 ms after it was sent$/,
  ],
  [
    "a sleep that is too short",
    lines(line("slept", "napper", 500, { job: "n", n: 60 })),
    "early",
    /^napper n slept for 60.0 ms$/,
  ],
  [
    "a job that is not there",
    { ...SOUND, counts: [{ kind: "limited", expected: 2, found: 1 }] },
    "lost",
    /^limited: 1 of 2 jobs are there$/,
  ],
  [
    "a job that nobody asked for",
    { ...SOUND, counts: [{ kind: "ward", expected: 2, found: 3 }] },
    "doubled",
    /^ward: 3 jobs are there, and 2 were asked for$/,
  ],
];

for (const [title, facts, law, sentence] of DAMAGE)
  test(`${title}: found`, () => {
    const { [law]: broken, ...others } = audit(facts);
    assert.equal(broken.length, 1, broken.join("\n"));
    assert.match(broken[0]!, sentence);
    for (const [other, found] of Object.entries(others)) assert.deepEqual(found, [], other);
  });

test("with every protection switched off, each law finds something", async () => {
  const rig = fileURLToPath(new URL("../../proof/torture/main.ts", import.meta.url));
  const all = Object.keys(PLANTS).join();
  const sizes = ["--kills", "8", "--keys", "6", "--workers", "2", "--ended-within", "4000"];
  const args = ["--features", "--scenario", "mixed,pace,fairness,schedules", "--plant", all, ...sizes, "--json"];
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", rig, ...args]);
  const [out, err, code] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    new Promise((resolve) => child.once("close", resolve)),
  ]);
  for (const [, folder] of err.matchAll(/kept in (\S*outlive-torture-\S+)/g)) rmSync(folder!, { recursive: true });
  assert.equal(code, 1, err);
  const counts = JSON.parse(out.trimEnd().split("\n").at(-1)!) as Record<string, number>;
  for (const law of new Set(Object.values(PLANTS))) assert.ok(counts[law]! > 0, `${law}: ${counts[law]}\n${err}`);
  assert.match(err, /^mixed: overLimit: key key-\d+: /m);
  assert.match(err, /^fairness: stuckKeys: job \S+, the only one of its tenant, waited for \S+ rounds/m);
  assert.match(err, /^pace: overLimit: .*key pace-\d+.*: \d+ starts/m);
});
