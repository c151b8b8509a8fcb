"""Why a target is missed, by the name of its point. Printed in the Markdown beside each one that is."""

REASONS = {}
