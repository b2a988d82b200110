// Power losses of the SQLite store: real processes are recorded call by call, and what they left is cut down to what was synced and
// any part of what was not. The long form is `npm run torture -- --power-loss --states 10000`.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, describe, it } from "node:test";
import { scenariosOf, scratchRoot } from "../../proof/torture/arguments.ts";
import { recordAgain } from "../../proof/torture/power-loss/again.ts";
import { runCampaign, type State, type Tally } from "../../proof/torture/power-loss/campaign.ts";
import { Disk } from "../../proof/torture/power-loss/disk.ts";
import { NOTHING_UNSYNCED } from "../../proof/torture/power-loss/fate.ts";
import { record, type Recording, recordOnce } from "../../proof/torture/power-loss/recording.ts";
import { promisedBy } from "../../proof/torture/scenarios/promised.ts";
import { DATABASE, SCENARIOS } from "../../proof/torture/scenarios/scenario.ts";
import { ensureStrace } from "../../proof/torture/strace.ts";
import { isBroken, judge, type Verdict } from "../../proof/torture/verdict.ts";

const STATES = 220;
const SEED = 1;
/** For the controls, which need not see everything. */
const FEW = scenariosOf("enqueue,commit,reopen");

describe("a power loss", () => {
  const folder = mkdtempSync(join(scratchRoot(), "outlive-test-"));
  const recordings: Recording[] = [];
  const broken: State[] = [];
  let tally: Tally;
  before(async () => {
    ensureStrace();
    for (const scenario of SCENARIOS) recordings.push(await record(scenario, "full", folder));
    tally = await runCampaign({
      recordings,
      states: STATES,
      seed: SEED,
      root: folder,
      onState: (state) => void (isBroken(state.verdict) && broken.push(state)),
    });
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  const findings = (...kinds: (keyof Verdict)[]): string[] =>
    broken.flatMap(({ number, scenario, moment, fate, verdict }) =>
      kinds.flatMap((kind) =>
        verdict[kind].map((finding) => `state ${number}, ${scenario} after moment ${moment} (${fate}): ${finding}`),
      ),
    );

  it(`NFR-005 loses nothing that was acknowledged, in ${STATES} states of every scenario`, () => {
    assert.deepEqual(findings("lost"), []);
    assert.equal(tally.states, STATES);
    assert.equal(tally.scenarios, SCENARIOS.length);
    assert.ok(tally.exposed > STATES / 2, `only ${tally.exposed} states had something unsynced to lose`);
    assert.ok(tally.acknowledged > 5 * STATES, `only ${tally.acknowledged} answers were checked`);
  });

  it("FR-010 leaves a sound file with whole transactions only", () => {
    assert.deepEqual(findings("corrupt"), []);
  });

  it("lets the rest of the work be finished afterwards, each commit exactly once", () => {
    assert.deepEqual(findings("committedTwice", "stuck"), []);
  });

  it("IT-003 right behind each answer leaves what is in the WAL alone, which the next open brings back", async () => {
    const { base, moments, wordsBefore } = recordings.find(({ scenario }) => scenario === "enqueue")!;
    const disk = new Disk(base);
    const words = [...wordsBefore];
    let inWalOnly = 0;
    for (const [at, moment] of moments.entries()) {
      if (moment.is === "change") {
        disk.apply(moment.change);
        continue;
      }
      words.push(moment.word);
      const files = disk.lose(NOTHING_UNSYNCED);
      if (files.get(DATABASE)!.equals(base.get(DATABASE)!) && (files.get(`${DATABASE}-wal`)?.length ?? 0) > 0)
        inWalOnly++;
      const verdict = await judgeFiles(join(folder, `wal-${at}`), files, words);
      assert.ok(!isBroken(verdict), JSON.stringify(verdict));
    }
    assert.ok(inWalOnly > 5, `only in ${inWalOnly} states the WAL had what the database had not`);
  });

  it("IT-004 after another one, and what was done since, still loses nothing and commits nothing twice", async () => {
    const again = await recordAgain(recordings, { count: 6, seed: SEED, durability: "full", parent: folder });
    const found: State[] = [];
    const second = await runCampaign({
      recordings: again,
      states: 60,
      seed: SEED,
      root: folder,
      onState: (state) => void (isBroken(state.verdict) && found.push(state)),
    });
    assert.deepEqual(found, []);
    assert.ok(second.exposed > 30, `only ${second.exposed} states had something unsynced to lose`);
  });

  it("is replayed the same from the same recording and seed", async () => {
    const seen = async (): Promise<string[]> => {
      const states: string[] = [];
      const onState = ({ number, moment, fate, promises }: State): void =>
        void states.push(`${number} ${moment} ${fate} ${promises}`);
      await runCampaign({ recordings: recordings.slice(0, 2), states: 10, seed: 7, root: folder, onState });
      return states;
    };
    assert.deepEqual(await seen(), await seen());
  });

  it("that takes synced writes too is noticed: the rig can fail", async () => {
    const few = recordings.filter(({ scenario }) => FEW.some(({ name }) => name === scenario));
    const planted = await runCampaign({ recordings: few, states: 60, seed: SEED, root: folder, ignoreSyncs: true });
    assert.ok(planted.lost > 30, `lost in ${planted.lost} of ${planted.states} states`);
    assert.ok(planted.corrupt > 3, `corrupt in ${planted.corrupt} of ${planted.states} states`);
  });

  it("loses acknowledged work with durability relaxed, as its option says, but leaves a sound file", async () => {
    const relaxed: Recording[] = [];
    for (const scenario of FEW) relaxed.push(await recordOnce(scenario, "relaxed", folder));
    const tallied = await runCampaign({ recordings: relaxed, states: 60, seed: SEED, root: folder });
    assert.ok(tallied.lost > 20, `lost in ${tallied.lost} of ${tallied.states} states`);
    assert.deepEqual([tallied.corrupt, tallied.committedTwice, tallied.stuck], [0, 0, 0]);
  });

  describe("and its judge", () => {
    const last = (scenario: string): { files: Map<string, Buffer>; words: Recording["wordsBefore"] } => {
      const { base, moments, wordsBefore } = recordings.find((recording) => recording.scenario === scenario)!;
      const disk = new Disk(base);
      for (const moment of moments) if (moment.is === "change") disk.apply(moment.change);
      return {
        files: disk.everything(),
        words: [...wordsBefore, ...moments.flatMap((moment) => (moment.is === "word" ? [moment.word] : []))],
      };
    };
    const damages: readonly { what: string; kind: keyof Verdict; scenario: string; sql: string }[] = [
      {
        what: "a job that is missing",
        kind: "lost",
        scenario: "enqueue",
        sql: "DELETE FROM outlive_jobs WHERE id = 'single-3'",
      },
      {
        what: "a success that is forgotten",
        kind: "lost",
        scenario: "settle",
        sql: "UPDATE outlive_jobs SET state = 0, lane = 1 WHERE id = 'plain-3'",
      },
      {
        what: "a fence that has fallen",
        kind: "lost",
        scenario: "settle",
        sql: "UPDATE outlive_jobs SET fence = 0 WHERE id = 'plain-3'",
      },
      {
        what: "a step that is missing",
        kind: "lost",
        scenario: "settle",
        sql: "DELETE FROM outlive_steps WHERE name = 'first'",
      },
      {
        what: "a part of a transaction",
        kind: "corrupt",
        scenario: "enqueue",
        sql: "DELETE FROM outlive_jobs WHERE id = 'bulk-7'",
      },
      {
        what: "a success without its rows",
        kind: "corrupt",
        scenario: "commit",
        sql: "DELETE FROM ledger WHERE job = 'move-2'",
      },
      {
        what: "rows that are there twice",
        kind: "committedTwice",
        scenario: "commit",
        sql: "INSERT INTO ledger SELECT * FROM ledger WHERE job = 'move-2'",
      },
    ];
    for (const { what, kind, scenario, sql } of damages) {
      it(`notices ${what}`, async () => {
        const { files, words } = last(scenario);
        const place = join(folder, `damage-${what.replaceAll(" ", "-")}`);
        const verdict = await judgeFiles(place, files, words, (path) => {
          const db = new DatabaseSync(path);
          db.exec(sql);
          db.close();
        });
        assert.notDeepEqual(verdict[kind], [], JSON.stringify(verdict));
      });
    }

    it("notices a page that is not what SQLite wrote", async () => {
      const { files, words } = last("commit");
      const verdict = await judgeFiles(join(folder, "damage-page"), files, words, (path) => {
        const bytes = readFileSync(path);
        // The heads of the second to the tenth page.
        for (let page = 1; page < 10; page++) bytes.fill(0xff, page * 4_096, page * 4_096 + 8);
        writeFileSync(path, bytes);
      });
      assert.notDeepEqual(verdict.corrupt, []);
    });
  });
});

/** Writes the files of a state, lets `damage` at its database, and judges it. */
function judgeFiles(
  folder: string,
  files: ReadonlyMap<string, Buffer>,
  words: Recording["wordsBefore"],
  damage: (path: string) => void = () => {},
): Promise<Verdict> {
  mkdirSync(folder);
  for (const [path, bytes] of files) if (!path.includes("/")) writeFileSync(join(folder, path), bytes);
  damage(join(folder, DATABASE));
  return judge(folder, promisedBy(words), { rebooted: true });
}
