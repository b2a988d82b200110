// What the rows of a store let a watcher know: who is silent is told by a counter that stands still on the watcher's own clock, and
// by no instant of anybody else's.
import assert from "node:assert/strict";
import { FailureDetector } from "../../recovery/failure-detector.ts";
import type { Liveness } from "../../stores/liveness.ts";
import { virtualClock } from "../virtual-clock.ts";
import { LEASE_MS, type Fixture, type Specify } from "./fixture.ts";

const LOOK_MS = LEASE_MS / 10;
const BEAT = { loopLagMs: 0 };

/** Nothing is proved: only heartbeats speak. */
const noLocks: Liveness = {
  take: () => assert.fail("a watcher takes no lock"),
  probe: async () => "unknown",
  clean: async () => false,
};

export function specifyLiveness(specify: Specify): void {
  specify("a worker that does not beat for one lease is silent, one that does is not", async (fixture) => {
    await fixture.worker("mute");
    await fixture.worker("well");
    const watcher = new Watcher(fixture);
    for (let look = 0; look < 10; look++) {
      assert.deepEqual(await watcher.look(), []);
      await fixture.store.beat("well", BEAT);
    }
    assert.deepEqual(await watcher.look(), ["mute"]);
  });

  specify("known bug 5: a job that runs for many leases is not taken from a worker that beats", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    await worker.next();
    const watcher = new Watcher(fixture);
    for (let look = 0; look < 50; look++) {
      await fixture.store.beat("w", BEAT);
      assert.deepEqual(await watcher.look(), []);
    }
    assert.deepEqual(await fixture.states("a"), ["running"]);
  });

  specify(
    "known bug 17: a watcher whose wall clock is days away from the store's judges as any other",
    async (fixture) => {
      const watchers = [-3, 0, 3].map((days) => new Watcher(fixture, days * 86_400_000));
      await fixture.worker("mute");
      await fixture.worker("well");
      for (let look = 0; look < 10; look++) {
        for (const watcher of watchers) assert.deepEqual(await watcher.look(), []);
        await fixture.store.beat("well", BEAT);
      }
      for (const watcher of watchers) assert.deepEqual(await watcher.look(), ["mute"]);
    },
  );

  specify("known bug 17: a wall clock that jumps kills nobody: the watch starts again", async (fixture) => {
    await fixture.worker("w");
    const watcher = new Watcher(fixture);
    for (let look = 0; look < 9; look++) assert.deepEqual(await watcher.look(), []);
    watcher.clock.jump(3_600_000);
    for (let look = 0; look < 10; look++) assert.deepEqual(await watcher.look(), []);
    assert.deepEqual(await watcher.look(), ["w"]);
  });

  specify(
    "known bug 18: a watcher that was asleep itself takes nobody for dead: the watch starts again",
    async (fixture) => {
      await fixture.worker("w");
      const watcher = new Watcher(fixture);
      assert.deepEqual(await watcher.look(), []);
      await watcher.clock.advance(10 * LEASE_MS);
      assert.deepEqual(await watcher.look(), []);
      await fixture.store.beat("w", BEAT);
      for (let look = 0; look < 10; look++) assert.deepEqual(await watcher.look(), []);
    },
  );
}

/** Another process that looks at the workers' rows now and then, by a clock of its own. */
class Watcher {
  readonly clock = virtualClock();
  readonly #fixture: Fixture;
  readonly #detector: FailureDetector;

  constructor(fixture: Fixture, aheadMs = 0) {
    this.#fixture = fixture;
    this.clock.jump(aheadMs);
    this.#detector = new FailureDetector({
      clock: this.clock,
      liveness: noLocks,
      processState: () => "unknown",
      bootId: "boot-1",
    });
  }

  /** Looks, and then waits until the next look. Answers who is dead. */
  async look(): Promise<readonly string[]> {
    const dead = await this.#detector.look(await this.#fixture.store.workers({}), LOOK_MS);
    await this.clock.advance(LOOK_MS);
    return dead.map(({ worker }) => worker.id);
  }
}
