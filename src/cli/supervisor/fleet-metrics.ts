// The metrics of all worker processes as one: what the living say now, what the dead had said last, and the supervisor's own, which
// alone reads the store.
import { Registry } from "prom-client";
import type { EngineEvent } from "../../core/events.ts";
import type { Engine } from "../../engine.ts";
import { aggregatedText, attachMetrics, lasting, type MetricsSnapshot } from "../../metrics.ts";
import type { Child } from "./child.ts";

export class FleetMetrics {
  readonly #own = new Registry();
  #ofTheDead: readonly MetricsSnapshot[] = [];

  /** `early`: what the supervisor's own open told. */
  constructor(engine: Engine, early: readonly EngineEvent[]) {
    attachMetrics(engine, { registry: this.#own, early });
  }

  /** Its last word stays in the sums. */
  bury({ latest }: Child): void {
    if (latest) this.#ofTheDead = [...this.#ofTheDead, latest];
  }

  async text(children: readonly Child[]): Promise<string> {
    const dead = this.#ofTheDead;
    const [own, buried, ...living] = await Promise.all([
      this.#own.getMetricsAsJSON(),
      lasting(dead),
      ...children.map((child) => child.metrics()),
    ]);
    // Unless somebody died meanwhile, the sum of the dead stands for them from now on.
    if (this.#ofTheDead === dead) this.#ofTheDead = [buried];
    return aggregatedText([own, buried, ...living.filter((snapshot) => snapshot !== null)]);
  }
}
