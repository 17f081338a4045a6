/** What would another policy have done? */

import type { Policies } from '../api';
import { Command, Empty, View } from '../parts';

export function PoliciesView(props: { policies: Policies }) {
  return (
    <View id="policies" title="Other policies" question="What would another policy have done?">
      <Empty why={props.policies.reason}>
        {props.policies.commands.map((command) => (
          <p key={command}>
            <Command text={command} />
          </p>
        ))}
      </Empty>
    </View>
  );
}
