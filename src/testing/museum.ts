// temporarily nothing in here yet
export interface Exhibit {
  readonly number: number;
}
export const MUSEUM: readonly Exhibit[] = [];
