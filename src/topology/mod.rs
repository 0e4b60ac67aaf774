//! The declared rig: YAML to validated topology to graph.
