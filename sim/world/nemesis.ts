// Does harm, at random moments and to random processes, until the weather is calm.
import type { SeededRandom } from "./random.ts";
import type { Supervisor } from "./supervisor.ts";
import { type Act, LEASE_MS } from "./temper.ts";
import type { World } from "./world.ts";

export class Nemesis {
  readonly #world: World;
  readonly #supervisor: Supervisor;
  readonly #random: SeededRandom;

  constructor(world: World, supervisor: Supervisor) {
    this.#world = world;
    this.#supervisor = supervisor;
    this.#random = world.random.fork("nemesis");
  }

  start(): void {
    const { scheduler, temper, weather } = this.#world;
    scheduler.at(scheduler.now + this.#random.next() * 2 * temper.nemesisEveryMs, null, () => {
      if (weather.calm) return;
      this.#act(this.#random.weighted(temper.nemesis));
      this.start();
    });
  }

  #act(act: Act): void {
    const { workers, producer, console } = this.#supervisor;
    const slot = this.#random.below(workers.length);
    const victim = workers[slot]?.process;
    switch (act) {
      case "kill":
        return victim?.kill("nemesis");
      case "killAll":
        for (const running of workers) running?.process.kill("nemesis");
        return;
      case "pause": {
        const ms = this.#random.pick([0.2, 1, 1.3, 2, 4]) * LEASE_MS * this.#random.between(0.7, 1.3);
        if (victim?.alive) this.#world.tally.pauses++;
        return victim?.pause(ms);
      }
      case "block":
        return victim?.block(this.#random.between(0.3, 2) * LEASE_MS);
      case "deploy":
        return this.#supervisor.deploy(slot, this.#random.pick([0, 200, 2_000]));
      case "killProducer":
        return producer?.kill("nemesis");
      case "killConsole":
        return console?.kill("nemesis");
    }
  }
}
